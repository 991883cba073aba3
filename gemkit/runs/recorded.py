"""The folder of a run as records for a report: its own seed, and the seeds of its checks."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemkit.core.atomic_io import open_plain, read
from gemkit.core.errors import GemkitError, OptionError
from gemkit.core.limits import MAX_NAME_LENGTH, MAX_TEXT_LENGTH
from gemkit.plugins.titles import pruner_title
from gemkit.report.records import records_from
from gemkit.runs.checkfile import NAME as CHECKS
from gemkit.runs.directory import RunDir
from gemkit.runs.found import runs_in
from gemkit.sanity.trials import TICKET, Measured, Trial, Unmade
from gemkit.training.metrics import values_of

Record = dict[str, Any]
_MOST_LINES = 200_000
_MOST_BYTES = 1 << 28
_STATES = {"done": "done", "failed": "failed", "interrupted": "partial", "running": "partial"}
_NOT_SETTINGS = {"seed", "run", "versions"}
"""What config.toml says beside the configuration that seeds share."""
_UNIMPORTANT = {"gemkit", "torch"}
"""Versions that seeds of one experiment may differ in; those of plugins may not."""


class _Checks(BaseModel):
    """The results in checks.json."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    trials: list[Trial] = []
    measurements: list[Measured] = []
    unmade: list[Unmade] = []
    checks: dict[str, dict[str, Any]] = Field(default={})


def run_records(folder: Path) -> list[Record]:
    """Return the records of the run in a folder, or of all runs in its subfolders.

    Paths of tickets are relative to the folder. A run whose files cannot be read is an error if it
    is the one that was named, and a failed record otherwise.
    """
    if RunDir(folder).is_run():
        return _records(RunDir(folder), Path())
    found: list[Record] = []
    for path in runs_in(folder):
        if not path.is_symlink():
            try:
                found += _records(RunDir(path), Path(path.name))
            except (GemkitError, OSError) as error:
                found.append(
                    {"density": 1.0, "state": "failed", "problem": str(error)[:MAX_TEXT_LENGTH]}
                )
    return found


def positive_checks(folder: Path) -> set[str]:
    """Return the checks of a run that should be as good as the ticket, by its own files."""
    checks = _checks(RunDir(folder)).checks if RunDir(folder).is_run() else {}
    return {name for name, own in checks.items() if own.get("expects") == "same"}


def _records(run: RunDir, inside: Path) -> list[Record]:
    run.check_plain()
    config, state = run.config(), run.state()
    result = run.result() or {}
    lines = list(_lines(run.metrics))
    common = {
        **_about(config),
        **{
            name: value
            for name, value in values_of(result).items()
            if name not in ("before", "after")
        },
    }
    own = common | {
        "seed": _seed(config, run),
        "state": _STATES[state],
        "curves": curves_of(lines),
        "bound": bound_of(lines),
        "collapse": next((_message(one) for one in lines if one.get("event") == "collapse"), None),
        "problem": _message(lines[-1]) if lines and state == "failed" else None,
        "controls": {},
        "measurements": {},
        "unmade": {},
    }
    if result:
        own |= _measured(result) | {"ticket": str(inside / run.ticket.name)}
    return _checked(_with_checks(own, common, _checks(run)), run)


def _checked(records: list[Record], run: RunDir) -> list[Record]:
    """Refuse records that no report takes, and name their run."""
    try:
        records_from(records)
    except OptionError as error:
        raise OptionError(f"{run.path}: {error}") from error
    return records


def _seed(config: Mapping[str, Any], run: RunDir) -> int:
    """Return the seed, by which the results of checks are found."""
    seed = config.get("seed", 0)
    if not isinstance(seed, int):
        raise OptionError(f"{run.path} cannot be reported: the seed in its config.toml is {seed!r}")
    return seed


def _message(line: Mapping[str, Any]) -> str | None:
    """Return the message of a line, no longer than a report takes."""
    message = line.get("message")
    return None if message is None else str(message)[:MAX_TEXT_LENGTH]


def _about(config: Mapping[str, Any]) -> Record:
    """Return what the configuration says: pruner, network, data, density and all settings."""
    return {
        "pruner": pruner_title(config.get("recipe")) or "?",
        "model": name_of(config.get("model")),
        "dataset": name_of(config.get("dataset")),
        "density": config.get("density", 1.0),
        "config": settings_of(config),
    }


def settings_of(config: Mapping[str, Any]) -> Record:
    """Return what runs that differ in their seed alone have in common: settings, data, plugins."""
    settings = {name: value for name, value in config.items() if name not in _NOT_SETTINGS}
    versions = config.get("versions")
    known = versions.items() if isinstance(versions, dict) else ()
    plugins = {name: one for name, one in known if name not in _UNIMPORTANT}
    return settings | ({"versions": plugins} if plugins else {})


def name_of(spec: object) -> str:
    """Return the name of a network or data set, with the argument that names it in full."""
    if not isinstance(spec, dict):
        return str(spec) if isinstance(spec, str) else "?"
    name = spec.get("name", spec.get("custom", "?"))
    inner = spec.get("network") or spec.get("path")
    return (f"{name}:{inner}" if inner else str(name))[:MAX_NAME_LENGTH]


def _measured(result: Mapping[str, Any]) -> Record:
    """Return what result.json says."""
    values, layers = values_of(result), result.get("layers")
    return {
        **{moment: values[moment] for moment in ("before", "after")},
        "kept": result["kept"],
        "prunable": result["prunable"],
        "layers": [
            [own["name"], own["kept"], own["prunable"]]
            for own in (layers if isinstance(layers, list) else [])
            if isinstance(own, dict) and {"name", "kept", "prunable"} <= own.keys()
        ],
        "search_epochs": result.get("epochs"),
        "seconds": result["seconds"],
    }


def curves_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[Record]]:
    """Return what both phases measured after every epoch, from the lines of the metrics."""
    curves: dict[str, list[Record]] = {"search": [], "finetune": []}
    for one in lines:
        phase = one.get("phase")
        if one.get("event") == "epoch" and isinstance(phase, str) and phase in curves:
            moment = {name: one.get(name) for name in ("epoch", "density", "strength")}
            curves[phase].append(moment | {"metric": one.get("accuracy", one.get("value"))})
    return curves


def bound_of(lines: Iterable[Mapping[str, Any]]) -> list[list[float]]:
    """Return the epochs of the search before every freeze, and the fraction alive after it.

    A freeze follows the line of its epoch. Steps would not do: rewinding turns them back.
    """
    bound: list[list[float]] = []
    epoch = 0
    for one in lines:
        if one.get("event") == "epoch" and one.get("phase") == "search":
            given = one.get("epoch")  # earlier lines may be lost
            epoch = given if isinstance(given, int) else epoch + 1
        elif one.get("event") == "freeze":
            alive, prunable = one.get("alive"), one.get("prunable")
            if not isinstance(alive, int) or not isinstance(prunable, int):
                continue
            if 0 <= alive <= prunable and prunable > 0:
                bound.append([epoch, alive / prunable])
    return bound


def _with_checks(own: Record, common: Record, checks: _Checks) -> list[Record]:
    """Add controls to the record of their seed; other seeds of the checks get their own record."""
    records = {own["seed"]: own}
    for trial in checks.trials:
        empty = common | {"seed": trial.seed, "controls": {}, "measurements": {}, "unmade": {}}
        record = records.setdefault(trial.seed, empty)
        values = {"before": trial.before, "after": trial.after}
        if trial.check != TICKET:
            record["controls"][trial.check] = values
        elif record is not own:
            record |= {**values, "kept": trial.kept, "prunable": trial.prunable}
            records[trial.seed] = record
    for one in checks.measurements:
        if one.seed in records:
            records[one.seed]["measurements"][one.check] = one.numbers
    for lost in checks.unmade:
        if lost.seed in records:
            records[lost.seed]["unmade"][lost.check] = lost.reason[:MAX_TEXT_LENGTH]
    return list(records.values())


def _checks(run: RunDir) -> _Checks:
    """Read checks.json, if there is one."""
    path = run.path / CHECKS
    try:
        return _Checks.model_validate_json(read(path, within=run.path))
    except FileNotFoundError:
        return _Checks()
    except (OSError, ValidationError, ValueError) as error:
        raise OptionError(f"{path} cannot be read as checks; remove it, and check again") from error


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    """Yield the complete lines of the metrics; without a file there are none."""
    try:
        with open_plain(path, within=path.parent) as file:
            for number, line in enumerate(file):
                if number >= _MOST_LINES or file.tell() > _MOST_BYTES:
                    raise OptionError(f"{path} has too many lines to be reported")
                if line.endswith(b"\n") and isinstance(data := json.loads(line), dict):
                    yield data
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"{path} cannot be read: {error}") from error
