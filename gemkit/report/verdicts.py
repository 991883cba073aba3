"""Verdicts and measured numbers as tables."""

import statistics
from collections.abc import Sequence

from gemkit.core.text import number_of
from gemkit.report.tables import text_table
from gemkit.sanity.trials import TICKET, Trial
from gemkit.sanity.verdicts import Summary, Verdict
from gemkit.training.metrics import ACCURACY, Metric


def verdict_table(
    trials: Sequence[Trial], judged: Sequence[Verdict], metric: Metric = ACCURACY
) -> str:
    """Show density, metric and verdict of a ticket and its controls."""
    by_check: dict[str, list[Trial]] = {}
    for trial in trials:
        by_check.setdefault(trial.check, []).append(trial)
    rows = [
        _row(by_check[TICKET], None, metric),
        *(_row(by_check[one.check], one, metric) for one in judged),
    ]
    worse = "drop" if metric.higher_is_better else "rise"
    header = ("", "density", "before", "after", worse, "95 % interval", "seeds", "verdict")
    return text_table(header, rows, numbers=(1, 2, 3, 4, 5, 6))


def _row(trials: Sequence[Trial], verdict: Verdict | None, metric: Metric) -> tuple[str, ...]:
    density = statistics.fmean(trial.kept / trial.prunable for trial in trials)
    figures = (
        f"{density:.4f}",
        spread([t.before for t in trials], metric),
        spread([t.after for t in trials], metric),
    )
    if verdict is None:
        return (TICKET, *figures, "", "", str(len(trials)), "")
    between = (
        "–"
        if verdict.interval is None
        else " … ".join(_figure(end, metric, "+") for end in verdict.interval)
    )
    drop = _figure(verdict.drop, metric, "+")
    return (verdict.check, *figures, drop, between, str(verdict.seeds), worded(verdict))


def spread(values: Sequence[float], metric: Metric = ACCURACY) -> str:
    """Format values as mean ± standard deviation, shares in percent."""
    mean = _figure(statistics.fmean(values), metric)
    return mean if len(values) < 2 else f"{mean} ± {_figure(statistics.stdev(values), metric)}"


def _figure(value: float, metric: Metric, sign: str = "") -> str:
    return f"{100 * value:{sign}.1f}" if metric.share else f"{value:{sign}.4g}"


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
