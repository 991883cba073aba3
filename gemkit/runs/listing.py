"""The runs in a folder: their states and results."""

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemkit.core.errors import GemkitError
from gemkit.core.text import escaped, number_of
from gemkit.plugins.titles import pruner_title
from gemkit.report.spread import INTERVAL, spread_of
from gemkit.report.tables import wide_table
from gemkit.runs.directory import RunDir
from gemkit.runs.found import runs_in
from gemkit.runs.metrics import last_line
from gemkit.runs.recorded import settings_of
from gemkit.sanity.verdicts import LEAST_SEEDS
from gemkit.training.metrics import ACCURACY, value_text, values_of


def runs_data(folder: Path) -> list[dict[str, Any]]:
    """Describe the run in a folder, or every run in its subfolders."""
    if RunDir(folder).is_run():
        return [_describe(RunDir(folder))]
    return [_describe(RunDir(path)) for path in runs_in(folder)]


def _describe(run: RunDir) -> dict[str, Any]:
    """Describe a run, or the problem if its files cannot be read."""
    try:
        run.check_plain()
        state, config, result = run.state(), run.config(), run.result() or {}
        last, epoch = last_line(run.metrics), last_line(run.metrics, having="epoch")
    except (GemkitError, OSError) as error:
        return {"run": str(run.path), "state": "unreadable", "problem": str(error)}
    return {
        "run": str(run.path),
        "state": state,
        "pruner": _word(pruner_title(config.get("recipe"))),
        "model": _part(config.get("model")),
        "dataset": _part(config.get("dataset")),
        "seed": _count(config.get("seed")),
        "density_target": _number(config.get("density")),
        "density": _number(result.get("density", config.get("density"))),
        "accuracy_before": _number(result.get("accuracy_before")),
        "accuracy_after": _number(result.get("accuracy_after")),
        **_measured(result),
        "phase": _word(epoch.get("phase")),
        "epoch": _count(epoch.get("epoch")),
        "problem": _word(last.get("message"), 2000) if last.get("event") == "error" else None,
        "group": _group(config),
    }


def means_of(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the means of finished runs that differ in their seed alone."""
    groups: dict[str, dict[int, Mapping[str, Any]]] = {}
    for run in runs:
        if run["state"] == "done" and run["after"] is not None:
            groups.setdefault(run["group"], {})[run["seed"]] = run
    return [_mean(list(own.values())) for own in groups.values() if len(own) > 1]


def _mean(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shared = ("pruner", "model", "dataset", "density_target", "metric")
    found: dict[str, Any] = {name: runs[0][name] for name in shared} | {"seeds": len(runs)}
    for when in ("before", "after"):
        values = [run[when] for run in runs]
        spread = spread_of(values)
        assert spread is not None
        std = statistics.stdev(values)
        found[when] = {"mean": statistics.mean(values), "std": std, "half": spread.half}
    return found


def _group(config: Mapping[str, Any]) -> str:
    """Return what runs of the same configuration have in common, whatever their seeds."""
    text = json.dumps(settings_of(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _part(spec: object) -> str | None:
    """Return the name of a network or data set, with its argument."""
    if not isinstance(spec, dict):
        return None
    words = [spec.get("custom", spec.get("name")), spec.get("network")]
    return _word(":".join(str(word) for word in words if word is not None))


def _measured(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metric of a result and its values."""
    values = values_of(result)
    return {
        "metric": _word(values["metric"]) if result else None,
        "before": _number(values["before"], 1e100),
        "after": _number(values["after"], 1e100),
    }


def _number(value: object, largest: float = 1) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) <= largest else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def _word(value: object, longest: int = 60) -> str | None:
    return value[:longest] if isinstance(value, str) else None


def runs_text(runs: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Show runs as a table."""
    if not runs:
        return f"there are no runs in {folder}"
    header = ("run", "state", "pruner", "model", "data set", "seed", "density", "before", "after")
    table = wide_table((*header, "last epoch"), [_row(run) for run in runs], numbers=range(5, 9))
    if reasons := [_reason(run) for run in runs if run["state"] == "unreadable"]:
        table = "\n".join([table, "", *reasons])
    means = [_mean_row(one) for one in means_of(runs)]
    if not means:
        return table
    titles = ("means over seeds", "model", "data set", "density", "seeds", "before", "after")
    meant = f"±: half the {INTERVAL}, with {number_of(LEAST_SEEDS, 'seed')} or more"
    return f"{table}\n\n{wide_table(titles, means, numbers=range(3, 7))}\n{meant}"


def _reason(run: Mapping[str, Any]) -> str:
    """Return why a run cannot be read, in one line."""
    problem = run["problem"].partition("\n")[0]
    return escaped(f"{_name(run)}: {problem[:300]}")


def _name(run: Mapping[str, Any]) -> str:
    return Path(run["run"]).name or str(run["run"])


def _mean_row(mean: Mapping[str, Any]) -> tuple[str, ...]:
    values = [_mean_text(mean[when], mean["metric"]) for when in ("before", "after")]
    names = (str(mean[name] or "") for name in ("pruner", "model", "dataset"))
    return (*names, f"{mean['density_target'] or 0:.4g}", str(mean["seeds"]), *values)


def _mean_text(own: Mapping[str, float | None], metric: str) -> str:
    mean, half = _shown(own["mean"], metric), own["half"]
    return mean if half is None else f"{mean} ± {value_text(half, metric)}"


def _row(run: Mapping[str, Any]) -> tuple[str, ...]:
    density = run.get("density")
    epoch = f"{run.get('phase')} {run.get('epoch')}" if run.get("epoch") else ""
    return (
        _name(run),
        run["state"],
        *(str(run.get(name) or "") for name in ("pruner", "model", "dataset")),
        "" if run.get("seed") is None else str(run["seed"]),
        "" if density is None else f"{density:.4g}",
        *(_shown(run.get(when), run.get("metric")) for when in ("before", "after")),
        epoch,
    )


def _shown(value: float | None, metric: str | None) -> str:
    """Return accuracies as they are, and other metrics with their names."""
    if value is None or metric is None:
        return ""
    return (
        value_text(value, metric)
        if metric == ACCURACY.name
        else f"{metric} {value_text(value, metric)}"
    )
