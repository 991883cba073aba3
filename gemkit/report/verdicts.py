"""Does a ticket beat its controls? Paired over seeds, with an interval, and honest about doubt.

The drop of a seed is the accuracy of its ticket after fine-tuning minus that of its control. A
method *passes* a check when the drop is beyond the margin for certain: the whole 95 % confidence
interval of the mean (Student's t) lies above it. It *fails* when the interval lies below the
margin: the ticket is not better than its control by anything that counts. That is the upper one of
the two one-sided tests for equivalence; the lower one tells whether the control is just as good
(`equivalent`) or even better. Anything else is *undecided*.
"""

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, NamedTuple

from gemkit.checks import TICKET, Trial
from gemkit.report.tables import text_table
from gemkit.wording import number_of

CONFIDENCE = 0.95
LEAST_SEEDS = 3
POWER = 0.8
MARGIN = 0.01
_MOST_SEEDS = 1000

Outcome = Literal["passes", "fails", "undecided"]


class Verdict(NamedTuple):
    """What the seeds say about one check; accuracies and drops are fractions.

    `interval` is None where there are too few seeds for one. `more_seeds` is how many it would
    likely take to decide: with as many, a difference as it looks now is found four times in five.
    It is None where the verdict is in, or where a thousand would not do.
    """

    check: str
    outcome: Outcome
    drop: float
    interval: tuple[float, float] | None
    equivalent: bool
    seeds: int
    margin: float
    more_seeds: int | None


def judge(check: str, drops: Sequence[float], margin: float = MARGIN) -> Verdict:
    """Decide what paired differences say about a check."""
    seeds, mean = len(drops), statistics.fmean(drops)
    if seeds < LEAST_SEEDS:
        more = LEAST_SEEDS - seeds
        return Verdict(check, "undecided", mean, None, False, seeds, margin, more)
    low, high = interval = confidence_interval(drops)
    same = not any(drops)  # which no margin makes better, not even one of nothing
    below = same or high < margin
    outcome: Outcome = "passes" if low > margin else "fails" if below else "undecided"
    return Verdict(
        check=check,
        outcome=outcome,
        drop=mean,
        interval=interval,
        equivalent=same or (-margin < low and high < margin),
        seeds=seeds,
        margin=margin,
        more_seeds=more_seeds(drops, margin) if outcome == "undecided" else None,
    )


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's interval for the mean; equal values leave no doubt."""
    from scipy import stats  # here, because it takes a while to load

    mean, error = statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5
    if error == 0:
        return mean, mean
    low, high = stats.t.interval(CONFIDENCE, len(values) - 1, loc=mean, scale=error)
    return float(low), float(high)


def more_seeds(drops: Sequence[float], margin: float) -> int | None:
    """Tell how many more seeds are likely needed, from how the drops lie and scatter so far."""
    from scipy import stats

    if (scatter := statistics.stdev(drops)) == 0:
        return None  # just at the margin, every time
    distance = abs(statistics.fmean(drops) - margin) / scatter

    def likely(seeds: int) -> bool:
        bar = stats.t.ppf((1 + CONFIDENCE) / 2, seeds - 1)
        return bool(stats.nct.sf(bar, seeds - 1, distance * seeds**0.5) >= POWER)

    # More seeds decide more often, so the first number that will do can be found by halving.
    totals = range(len(drops) + 1, _MOST_SEEDS + 1)
    first = bisect_left(totals, True, key=likely)
    return None if first == len(totals) else totals[first] - len(drops)


def verdicts(trials: Sequence[Trial], margin: float = MARGIN) -> list[Verdict]:
    """Judge every check on the seeds for which ticket and control were both measured."""
    ticket = {trial.seed: trial.after for trial in trials if trial.check == TICKET}
    drops: dict[str, list[float]] = {}
    for trial in sorted(trials, key=lambda trial: trial.seed):
        if trial.check != TICKET and trial.seed in ticket:
            drops.setdefault(trial.check, []).append(ticket[trial.seed] - trial.after)
    order = dict.fromkeys(trial.check for trial in trials if trial.check in drops)
    return [judge(check, drops[check], margin) for check in order]


def verdict_table(trials: Sequence[Trial], judged: Sequence[Verdict]) -> str:
    """Show tickets and controls: how dense, how good before and after, and what follows."""
    by_check: dict[str, list[Trial]] = {}
    for trial in trials:
        by_check.setdefault(trial.check, []).append(trial)
    rows = [_row(by_check[TICKET], None), *(_row(by_check[one.check], one) for one in judged)]
    header = ("", "density", "before", "after", "drop", "95 % interval", "seeds", "verdict")
    return text_table(header, rows, numbers=(1, 2, 3, 4, 5, 6))


def _row(trials: Sequence[Trial], verdict: Verdict | None) -> tuple[str, ...]:
    density = statistics.fmean(trial.kept / trial.prunable for trial in trials)
    figures = (
        f"{density:.4f}",
        spread([t.before for t in trials]),
        spread([t.after for t in trials]),
    )
    if verdict is None:
        return (TICKET, *figures, "", "", str(len(trials)), "")
    between = (
        "–"
        if verdict.interval is None
        else "{:+.1f} … {:+.1f}".format(*(100 * end for end in verdict.interval))
    )
    drop = f"{100 * verdict.drop:+.1f}"
    return (verdict.check, *figures, drop, between, str(verdict.seeds), worded(verdict))


def spread(values: Sequence[float]) -> str:
    """Write accuracies as mean ± standard deviation, in percent."""
    mean = f"{100 * statistics.fmean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {100 * statistics.stdev(values):.1f}"


def worded(verdict: Verdict) -> str:
    """Say a verdict in words."""
    if verdict.outcome != "undecided":
        return verdict.outcome
    if verdict.more_seeds is None:
        return "undecided (too close to the margin)"
    return f"undecided (+{number_of(verdict.more_seeds, 'seed')}?)"
