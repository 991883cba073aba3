"""The controls of a report: paired drops, their intervals, and the verdicts."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gemkit.report.groups import Group
from gemkit.report.spread import Spread, spread_of
from gemkit.sanity.check import Expected
from gemkit.sanity.verdicts import MARGIN, Summary, Verdict, judge


class Judged(NamedTuple):
    """One control of one group: its metric over seeds, and the verdict."""

    group: Group
    check: str
    before: Spread | None
    after: Spread | None
    verdict: Verdict


def judged(
    groups: Sequence[Group],
    margin: float = MARGIN,
    expects: Mapping[str, Expected] | None = None,
) -> list[Judged]:
    """Judge every control, paired over the seeds for which ticket and control were measured.

    `expects` names the controls that should be as good as the ticket.
    """
    found = [
        _judged(one, check, margin, (expects or {}).get(check, "drop"))
        for one in groups
        for check in one.checks()
    ]
    return [one for one in found if one is not None]


def _judged(group: Group, check: str, margin: float, expected: Expected) -> Judged | None:
    tickets = group.by_seed("after")
    made = {one.seed: one.controls[check] for one in group.records if check in one.controls}
    drops = [
        group.metric.worse_by(control.after, than=tickets[seed])
        for seed, control in made.items()
        if control.after is not None and seed in tickets
    ]
    if not drops:
        return None
    counted = group.metric.margin(margin, statistics.fmean(tickets.values()))
    before, after = (
        spread_of([value for one in made.values() if (value := getattr(one, moment)) is not None])
        for moment in ("before", "after")
    )
    return Judged(group, check, before, after, judge(check, drops, counted, expected))


def measured(groups: Sequence[Group]) -> list[tuple[Group, Summary]]:
    """Return mean and standard deviation of every measured number of every group."""
    found = []
    for one in groups:
        values: dict[tuple[str, str], list[float]] = {}
        for record in one.records:
            for check, numbers in record.measurements.items():
                for name, value in numbers.items():
                    values.setdefault((check, name), []).append(value)
        for (check, name), own in values.items():
            std = statistics.stdev(own) if len(own) > 1 else None
            found.append((one, Summary(check, name, statistics.fmean(own), std, len(own))))
    return found
