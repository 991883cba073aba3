"""The records of a report as CSV: one row for each seed, and one for each group."""

import csv
import json
from collections.abc import Hashable, Iterable, Sequence
from io import StringIO
from typing import TypeVar

from gemkit.report.groups import Group
from gemkit.report.judged import Judged
from gemkit.report.quoting import sheet
from gemkit.report.records import Record
from gemkit.report.spread import Spread

Name = TypeVar("Name", bound=Hashable)
_RECORD = (
    *("study", "variant", "pruner", "model", "dataset", "density", "seed", "state", "metric"),
    *("before", "after", "kept", "prunable", "actual", "search_epochs", "seconds", "cpu_seconds"),
    *("collapse", "problem", "ticket", "key"),
)
_GROUP = ("series", "pruner", "model", "dataset", "metric", "target_density", "actual_density")
_SPREADS = ("before", "after", "search_epochs", "seconds", "cpu_seconds")
_STATES = ("done", "collapsed", "partial", "failed", "missing")


def record_sheet(groups: Sequence[Group]) -> str:
    """Return one row for each seed; controls, measurements and axes have columns of their own."""
    records = [(one.label, record) for one in groups for record in one.records]
    controls = _names(name for _, one in records for name in one.controls)
    axes = _names(name for _, one in records for name in one.axes)
    numbers = _names(
        (check, number)
        for _, one in records
        for check, own in one.measurements.items()
        for number in own
    )
    head = [
        "series",
        *_RECORD,
        *(f"axis {name}" for name in axes),
        *(f"{check} {moment}" for check in controls for moment in ("before", "after")),
        *(f"{check} {number}" for check, number in numbers),
    ]
    rows = [
        [
            label,
            *(getattr(one, field) for field in _RECORD),
            *(_plain(one.axes.get(name)) for name in axes),
            *(_control(one, check, moment) for check in controls for moment in ("before", "after")),
            *(one.measurements.get(check, {}).get(number) for check, number in numbers),
        ]
        for label, one in records
    ]
    return _csv(head, rows)


def group_sheet(groups: Sequence[Group], controls: Sequence[Judged]) -> str:
    """Return one row for each group: means, halves of 95 % intervals, counts and verdicts."""
    checks = _names(one.check for one in controls)
    judged = {(id(one.group), one.check): one for one in controls}
    head = [
        *_GROUP,
        *(f"{name} {part}" for name in _SPREADS for part in ("mean", "half 95 %", "n")),
        *_STATES,
        *(f"{check} {part}" for check in checks for part in _CHECK),
    ]
    rows = [
        [
            *(one.label, one.records[0].pruner, *one.place, one.density, one.actual),
            *(part for name in _SPREADS for part in _parts(one.spread(name))),
            *(one.states[state] for state in _STATES),
            *(part for check in checks for part in _verdict(judged.get((id(one), check)))),
        ]
        for one in groups
    ]
    return _csv(head, rows)


_CHECK = ("after mean", "worse by", "low 95 %", "high 95 %", "n", "verdict")


def _verdict(one: Judged | None) -> tuple[object, ...]:
    if one is None:
        return (None,) * len(_CHECK)
    low, high = one.verdict.interval or (None, None)
    after = None if one.after is None else one.after.mean
    return after, one.verdict.drop, low, high, one.verdict.seeds, one.verdict.outcome


def _parts(spread: Spread | None) -> tuple[object, ...]:
    return (None, None, 0) if spread is None else tuple(spread)


def _control(record: Record, check: str, moment: str) -> object:
    own = record.controls.get(check)
    return None if own is None else getattr(own, moment)


def _plain(value: object) -> object:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _names(names: Iterable[Name]) -> list[Name]:
    return list(dict.fromkeys(names))


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([sheet(one) for one in head])
    writer.writerows([sheet(one) for one in row] for row in rows)
    return out.getvalue()
