"""Verdicts: does a ticket beat its controls? Paired over seeds, with a confidence interval.

The drop of a seed is the accuracy of its ticket after fine-tuning minus that of its control, or by
how much any other metric of the control is worse. Where a metric has no scale of its own, as a mean
squared error has none, the margin is a part of the tickets' mean.

A method *passes* a check when the whole 95 % confidence interval of the mean drop (Student's t)
lies above the margin. It *fails* when the interval lies below the margin: the ticket is not better
by anything that counts. That is the upper of the two one-sided tests for equivalence; `equivalent`
says whether the lower one holds too, or the control is even better. Anything else is *undecided*.

A positive control, which should be as good as the ticket, is read the other way round: it passes
when both are equivalent, and fails when the interval lies beyond the margin, on either side.
"""

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from gemkit.sanity.check import Expected
from gemkit.sanity.trials import TICKET, Measured, Trial
from gemkit.training.metrics import ACCURACY, Metric

CONFIDENCE = 0.95
LEAST_SEEDS = 3
POWER = 0.8
MARGIN = 0.01
_MOST_SEEDS = 1000

Outcome = Literal["passes", "fails", "undecided"]


class Verdict(NamedTuple):
    """The verdict on one check; drops and the margin are in units of the metric.

    `interval` is None if there are too few seeds for one. `more_seeds` estimates how many more
    would decide with probability 0.8, if drops stay as they are. It is None if the verdict is
    decided, or if a thousand seeds would not be enough.
    """

    check: str
    outcome: Outcome
    drop: float
    interval: tuple[float, float] | None
    equivalent: bool
    seeds: int
    margin: float
    more_seeds: int | None
    expects: Expected = "drop"


def judge(
    check: str, drops: Sequence[float], margin: float = MARGIN, expects: Expected = "drop"
) -> Verdict:
    """Judge one check by its paired drops."""
    seeds, mean = len(drops), statistics.fmean(drops)
    if seeds < LEAST_SEEDS:
        more = LEAST_SEEDS - seeds
        return Verdict(check, "undecided", mean, None, False, seeds, margin, more, expects)
    low, high = interval = confidence_interval(drops)
    same = not any(drops)  # equal even at a margin of zero
    equivalent = same or (-margin < low and high < margin)
    passes, fails = low > margin, same or high < margin
    if expects == "same":
        passes, fails = equivalent, low > margin or high < -margin
    outcome: Outcome = "passes" if passes else "fails" if fails else "undecided"
    return Verdict(
        check=check,
        outcome=outcome,
        drop=mean,
        interval=interval,
        equivalent=equivalent,
        seeds=seeds,
        margin=margin,
        more_seeds=more_seeds(drops, margin, expects) if outcome == "undecided" else None,
        expects=expects,
    )


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's interval for the mean; for equal values it is a point."""
    from scipy import stats  # slow to import

    mean, error = statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5
    if error == 0:
        return mean, mean
    low, high = stats.t.interval(CONFIDENCE, len(values) - 1, loc=mean, scale=error)
    return float(low), float(high)


def more_seeds(drops: Sequence[float], margin: float, expects: Expected = "drop") -> int | None:
    """Estimate how many more seeds a verdict needs, from the mean and scatter of the drops."""
    from scipy import stats

    mean, scatter = statistics.fmean(drops), statistics.stdev(drops)
    if scatter == 0:
        return None  # exactly at the margin for every seed
    distances = [abs(mean - margin)]
    if expects == "same":  # the interval must leave both edges, or lie beyond one of them
        edges = [margin - mean, margin + mean]
        distances = edges if min(edges) > 0 else [-min(edges)]

    def likely(seeds: int) -> bool:
        bar = stats.t.ppf((1 + CONFIDENCE) / 2, seeds - 1)
        shifts = [distance / scatter * seeds**0.5 for distance in distances]
        misses = sum(1 - stats.nct.sf(bar, seeds - 1, shift) for shift in shifts)
        return bool(1 - misses >= POWER)

    # The power grows with the number of seeds, so bisection finds the smallest number.
    totals = range(len(drops) + 1, _MOST_SEEDS + 1)
    first = bisect_left(totals, True, key=likely)
    return None if first == len(totals) else totals[first] - len(drops)


def verdicts(
    trials: Sequence[Trial],
    margin: float = MARGIN,
    expects: Mapping[str, Expected] | None = None,
    metric: Metric = ACCURACY,
) -> list[Verdict]:
    """Judge every check on the seeds for which both ticket and control were measured.

    `expects` names the checks that do not expect a drop.
    """
    ticket = {trial.seed: trial.after for trial in trials if trial.check == TICKET}
    drops: dict[str, list[float]] = {}
    for trial in sorted(trials, key=lambda trial: trial.seed):
        if trial.check != TICKET and trial.seed in ticket:
            drop = metric.worse_by(trial.after, than=ticket[trial.seed])
            drops.setdefault(trial.check, []).append(drop)
    order = dict.fromkeys(trial.check for trial in trials if trial.check in drops)
    expected = expects or {}
    if ticket:
        margin = metric.margin(margin, statistics.fmean(ticket.values()))
    return [judge(check, drops[check], margin, expected.get(check, "drop")) for check in order]


class Summary(NamedTuple):
    """One number of a measurement over seeds; `std` is None for a single seed."""

    check: str
    number: str
    mean: float
    std: float | None
    seeds: int


def summaries(measured: Sequence[Measured]) -> list[Summary]:
    """Return mean and standard deviation of every number over the seeds that have it."""
    values: dict[tuple[str, str], list[float]] = {}
    for one in measured:
        for number, value in one.numbers.items():
            values.setdefault((one.check, number), []).append(value)
    return [
        Summary(
            check,
            number,
            statistics.fmean(own),
            statistics.stdev(own) if len(own) > 1 else None,
            len(own),
        )
        for (check, number), own in values.items()
    ]
