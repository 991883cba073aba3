"""Contenders timed side by side: in turns, each turn in another order, so that noise is shared."""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

_WARM = 2
"""Turns that do not count, in which memory and caches warm up."""


class Spread(NamedTuple):
    """The middle of some numbers, with their quartiles."""

    low: float
    median: float
    high: float


class Times(NamedTuple):
    """The seconds of one contender, turn by turn."""

    turns: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        """The median and the quartiles."""
        return _spread(self.turns)

    def against(self, other: "Times") -> Spread:
        """Return how many times the other's time this one takes, turn by turn."""
        return _spread([own / its for own, its in zip(self.turns, other.turns, strict=True)])

    def ratio(self, other: "Times") -> float:
        """Return the median of these ratios."""
        return self.against(other).median


def race(
    contenders: Mapping[str, Callable[[], object]],
    turns: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
    """Time every contender once a turn, in an order drawn anew for each."""
    order = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + _WARM):
        for name in order.sample(list(contenders), len(contenders)):
            began = clock()
            contenders[name]()
            if turn >= _WARM:
                seconds[name].append(clock() - began)
    return {name: Times(tuple(own)) for name, own in seconds.items()}


def _spread(numbers: "list[float] | tuple[float, ...]") -> Spread:
    if len(numbers) == 1:
        return Spread(numbers[0], numbers[0], numbers[0])
    return Spread(*statistics.quantiles(numbers, n=4, method="inclusive"))
