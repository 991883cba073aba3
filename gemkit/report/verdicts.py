"""Verdicts and measured numbers as tables."""

import statistics
from collections.abc import Sequence

from gemkit.core.text import number_of
from gemkit.report.tables import text_table
from gemkit.sanity.trials import TICKET, Trial
from gemkit.sanity.verdicts import Summary, Verdict


def verdict_table(trials: Sequence[Trial], judged: Sequence[Verdict]) -> str:
    """Show density, accuracy and verdict of a ticket and its controls."""
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
    """Format accuracies as mean ± standard deviation, in percent."""
    mean = f"{100 * statistics.fmean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {100 * statistics.stdev(values):.1f}"


def worded(verdict: Verdict) -> str:
    """Word a verdict; that on a positive control says what it means."""
    if verdict.outcome != "undecided":
        meaning = {"passes": "passes (same)", "fails": "fails (not the same)"}
        return verdict.outcome if verdict.expects == "drop" else meaning[verdict.outcome]
    if verdict.more_seeds is None:
        return "undecided (too close to the margin)"
    return f"undecided (+{number_of(verdict.more_seeds, 'seed')}?)"


def summary_table(summaries: Sequence[Summary]) -> str:
    """Show the numbers of measurements, as mean ± standard deviation over seeds."""
    rows = [(one.check, one.number, _mean(one), str(one.seeds)) for one in summaries]
    return text_table(("measurement", "", "mean ± std", "seeds"), rows, numbers=(2, 3))


def _mean(summary: Summary) -> str:
    mean = number_text(summary.mean)
    return mean if summary.std is None else f"{mean} ± {number_text(summary.std)}"


def number_text(value: float) -> str:
    """Format a number with four significant digits."""
    return f"{value:.4g}"
