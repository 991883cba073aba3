"""A mean over seeds with its 95 % confidence interval (Student's t), and differences of means."""

import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from gemkit.sanity.verdicts import CONFIDENCE, LEAST_SEEDS
from gemkit.training.metrics import Metric

INTERVAL = f"{100 * CONFIDENCE:g} % confidence interval of the mean over seeds (Student's t)"
"""What ± means in every table and figure of a report."""


class Spread(NamedTuple):
    """A mean, half the width of its interval, and the number of values.

    `half` is None where there are too few values for an interval.
    """

    mean: float
    half: float | None
    n: int

    def text(self, metric: Metric, *, digits: int = 1) -> str:
        """Return `mean ± half`, shares in percent."""
        mean = figure(self.mean, metric, digits)
        return mean if self.half is None else f"{mean} ± {figure(self.half, metric, digits)}"


def spread_of(values: Sequence[float]) -> Spread | None:
    """Return mean and interval of some values, or None if there are none."""
    if not values:
        return None
    n = len(values)
    if n < LEAST_SEEDS:
        return Spread(statistics.fmean(values), None, n)
    error = statistics.stdev(values) / n**0.5
    return Spread(statistics.fmean(values), quantile(n) * error, n)


@cache
def quantile(n: int) -> float:
    """Return how many standard errors of n values half an interval is wide."""
    from scipy import stats  # slow to import

    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))


def figure(value: float, metric: Metric, digits: int = 1) -> str:
    """Return the value of a metric: shares in percent, others with four significant digits."""
    return f"{100 * value:.{digits}f}" if metric.share else f"{value:.4g}"


def shown_worse(
    values: Mapping[int, float], best: Mapping[int, float], metric: Metric
) -> bool | None:
    """Return whether values by seed are worse than others, paired over the seeds they share.

    They are if the interval of the mean difference lies on the worse side of zero. With too few
    common seeds the answer is None.
    """
    drops = [metric.worse_by(values[seed], best[seed]) for seed in values if seed in best]
    spread = spread_of(drops)
    if spread is None or spread.half is None:
        return None
    return spread.mean - spread.half > 0
