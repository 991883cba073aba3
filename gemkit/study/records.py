"""The results of a study as records: one plain dictionary for each cell."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gemkit.core.errors import OptionError
from gemkit.core.limits import MAX_TEXT_LENGTH
from gemkit.report.groups import distinguishing
from gemkit.report.records import leaves
from gemkit.study.cell import CellInfo
from gemkit.study.stage_store import StageResult

Record = dict[str, Any]
_FIXED = ("variant", "pruner", "density", "model", "dataset")


class Records(list[Record]):
    """All records of a study, in the order of its cells."""

    def to_pandas(self) -> Any:  # noqa: ANN401 - a DataFrame, if pandas is installed
        """Return a DataFrame with a row for each cell, nested values flattened to `a.b`."""
        try:
            import pandas
        except ImportError as error:
            raise OptionError(
                "pandas is not installed; `pip install pandas`, or use the records themselves, "
                "which are plain dictionaries"
            ) from error
        return pandas.json_normalize(list(self))


def record_of(
    study: str,
    cell: CellInfo,
    results: Mapping[str, StageResult],
    failures: Mapping[str, str],
) -> Record:
    """Return the record of a cell; what is not measured yet is None."""
    search, finetune = results.get(cell.search), results.get(cell.finetune)
    own = {name: results[stage] for name, stage in cell.checks.items() if stage in results}
    return {
        "study": cell.study or study,
        "variant": cell.variant,
        "pruner": cell.pruner,
        "density": cell.density,
        "model": cell.model,
        "dataset": cell.dataset,
        "seed": cell.seed,
        "axes": dict(cell.axes),
        "config": dict(cell.config),
        "key": cell.search.partition("-")[2],
        "metric": cell.metric,
        "higher_is_better": cell.higher_is_better,
        "before": search and search.before,
        "after": finetune and finetune.after,
        "kept": search and search.kept,
        "prunable": search and search.prunable,
        "layers": [list(layer) for layer in search.layers] if search else [],
        "controls": {
            name: {"before": one.before, "after": one.after}
            for name, one in own.items()
            if one.after is not None
        },
        "unmade": {name: one.unmade for name, one in own.items() if one.unmade is not None},
        "measurements": {name: dict(one.numbers) for name, one in own.items() if one.numbers},
        "curves": {"search": _curve(search), "finetune": _curve(finetune)},
        "bound": [list(pair) for pair in search.bound] if search else [],
        "search_epochs": search and search.epochs,
        "seconds": search and finetune and round(search.seconds + finetune.seconds, 3),
        "cpu_seconds": search and finetune and round(search.cpu_seconds + finetune.cpu_seconds, 3),
        "collapse": search and search.collapse,
        "state": state_of(cell, results, failures),
        "problem": problem_of(cell, results, failures),
        "ticket": f"stages/{cell.search}/ticket.safetensors" if search and search.ticket else None,
        "versions": dict(search.versions) if search else {},
        "device": search.device if search else "",
    }


def _curve(result: StageResult | None) -> list[dict[str, Any]]:
    return [one.model_dump(exclude_none=True) for one in result.curve] if result else []


def state_of(
    cell: CellInfo, results: Mapping[str, StageResult], failures: Mapping[str, str]
) -> str:
    """Return done, partial, failed or missing; a network that collapsed has nothing to train."""
    search = results.get(cell.search)
    there = [stage in results for stage in cell.stages()]
    if all(there) or (search is not None and search.ticket is None):
        return "done"
    if problem_of(cell, results, failures) is not None:
        return "failed"
    return "partial" if any(there) else "missing"


def problem_of(
    cell: CellInfo, results: Mapping[str, StageResult], failures: Mapping[str, str]
) -> str | None:
    """Return why the first stage that failed did, no longer than a report takes."""
    failed = [failures[one] for one in cell.stages() if one in failures and one not in results]
    return failed[0][:MAX_TEXT_LENGTH] if failed else None


# --- groups: the same cell for all seeds ---


def groups_of(records: Sequence[Record]) -> dict[tuple[tuple[str, Any], ...], list[Record]]:
    """Gather the records that differ in their seed alone, by what names them.

    Where several configurations have the same title, the fewest settings that tell these apart
    follow it.
    """
    titled: dict[tuple[tuple[str, Any], ...], dict[str, list[Record]]] = {}
    for record in records:
        own = titled.setdefault(title_of(record), {})
        own.setdefault(json.dumps(_settings(record), sort_keys=True), []).append(record)
    crowds = [own.values() for own in titled.values() if len(own) > 1]
    paths = distinguishing([[leaves(_settings(one[0])) for one in crowd] for crowd in crowds])
    groups: dict[tuple[tuple[str, Any], ...], list[Record]] = {}
    for title, own in titled.items():
        for seeds in own.values():
            flat = leaves(_settings(seeds[0])) if paths else {}
            named = [(path, flat[path]) for path in paths if path in flat]
            groups.setdefault((*title, *named), []).extend(seeds)
    return groups


def _settings(record: Record) -> dict[str, Any]:
    """Return the configuration without the seed, and without the density that the title has."""
    return {name: one for name, one in record["config"].items() if name not in ("seed", "density")}


def title_of(record: Record) -> tuple[tuple[str, Any], ...]:
    """Return what names a group first: the fixed columns, then other axes."""
    others = {axis: one for axis, one in record["axes"].items() if axis not in (*_FIXED, "seed")}
    return tuple(
        [(name, record[name]) for name in _FIXED]
        + [(axis, str(one)) for axis, one in others.items()]
    )
