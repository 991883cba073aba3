"""Time several functions interleaved, in random order, so that noise affects all of them."""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

_WARMUP = 2
"""Turns that are not timed."""


class Spread(NamedTuple):
    """Median and quartiles."""

    low: float
    median: float
    high: float


class Times(NamedTuple):
    """The seconds of one function, turn by turn."""

    turns: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        """The median and the quartiles."""
        return _spread(self.turns)

    def against(self, other: "Times") -> Spread:
        """Return the ratio of this time to the other one, turn by turn."""
        return _spread([own / its for own, its in zip(self.turns, other.turns, strict=True)])

    def ratio(self, other: "Times") -> float:
        """Return the median ratio of this time to the other one."""
        return self.against(other).median


def time_interleaved(
    functions: Mapping[str, Callable[[], object]],
    turns: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
    """Time every function once per turn, in a new random order each turn."""
    order = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(turns + _WARMUP):
        for name in order.sample(list(functions), len(functions)):
            start = clock()
            functions[name]()
            if turn >= _WARMUP:
                seconds[name].append(clock() - start)
    return {name: Times(tuple(own)) for name, own in seconds.items()}


def _spread(numbers: "list[float] | tuple[float, ...]") -> Spread:
    if len(numbers) == 1:
        return Spread(numbers[0], numbers[0], numbers[0])
    return Spread(*statistics.quantiles(numbers, n=4, method="inclusive"))
