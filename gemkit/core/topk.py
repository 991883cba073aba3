"""Mark the largest entries of flat arrays, with exact counts, faster than `kthvalue`.

Learned scores are ranked in every training step, so this is written for speed. Every shortcut
checks its result and falls back to ranking everything, so none can change it. It works on NumPy
arrays, whose comparisons, counts and partition are several times faster than those of torch.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import gcd, inf, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_SMALL = 1 << 14  # entries; a sample of fewer is too small to help


class Flat(NamedTuple):
    """One-dimensional values, and which of them are alive (None: all)."""

    values: Array
    living: Array | None = None
    place: Callable[[Array], Array] | None = None
    """Converts positions here to positions in C order, which decide ties (None: the same)."""

    def ranked(self, stride: int = 1) -> Array:
        """Return every `stride`-th value, with -inf where it is not alive."""
        values = self.values[::stride]
        if self.living is None:
            return values
        return np.where(self.living[::stride], values, -inf)

    def marks(self, compare: Callable[[Array, float], Array], bound: float) -> Array:
        """Compare alive values with a bound."""
        marked = compare(self.values, bound)
        if self.living is not None:
            marked &= self.living
        return marked

    def places(self, positions: Array) -> Array:
        """Convert positions to C order."""
        return positions if self.place is None else self.place(positions)

    def last(self, positions: Array, count: int) -> Array:
        """Return the `count` of these ascending positions that come last in C order."""
        if self.place is None:
            return positions[len(positions) - count :]
        places = self.place(positions)
        return positions[places >= _nth_largest(places, count)]


def top(parts: Sequence[Flat], count: int) -> list[Array]:
    """Mark the `count` largest entries of all parts together; ties go to the lowest position.

    `count` is at least 1 and at most the number of alive entries, which are finite and of one type.
    The method is that of Floyd and Rivest (1975): a sample brackets the last entry to mark, one
    pass collects the entries in the bracket, and only those are ranked.
    """
    size = sum(len(part.values) for part in parts)
    masks = None
    if stride := sample_stride(size):
        low, high = bracket(joined([part.ranked(stride) for part in parts]), count, size)
        if low == high:
            masks = _top_down_to(low, parts, count)
        else:
            masks = _top_between(low, high, parts, count)
    if masks is None:
        everything = joined([part.ranked() for part in parts])
        masks = _top_down_to(_nth_largest(everything, count), parts, count)
    assert masks is not None, "the `count`-th largest value always gives a result"
    return masks


def count_ones(masks: Iterable[Array]) -> list[int]:
    """Count the nonzero entries of each mask."""
    return [int(np.count_nonzero(mask)) for mask in masks]


def joined(arrays: Sequence[Array]) -> Array:
    """Concatenate arrays."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _nth_largest(values: Array, count: int) -> float:
    """Return the `count`-th largest value.

    NumPy's partition is slow where many values tie for the smallest, as zeros and -inf do here, so
    it gets the values negated.
    """
    return -float(np.partition(-values, count - 1)[count - 1])


def sample_stride(size: int) -> int | None:
    """Return the stride of a good sample of `size` entries; None if there are too few.

    The stride shares no small factors with kernel sizes and channel counts, so that the sample
    covers all of their positions.
    """
    if size <= _SMALL:
        return None
    stride = int(size ** (1 / 3))
    while gcd(stride, 2 * 3 * 5 * 7) > 1:
        stride -= 1
    return stride


def bracket(sample: Array, count: int, size: int) -> tuple[float, float]:
    """Guess bounds on the `count`-th largest of `size`; equal bounds mean a tie."""
    middle = len(sample) * count / size
    margin = 3 * sqrt(middle * (1 - count / size)) + 2  # three standard deviations
    first, last = int(middle - margin), int(middle + margin) + 1
    high = _nth_largest(sample, first) if first > 0 else inf
    low = _nth_largest(sample, last) if last <= len(sample) else -inf
    return low, high


def _top_down_to(value: float, parts: Sequence[Flat], count: int) -> list[Array] | None:
    """Mark the `count` largest entries if `value` is the last of them; otherwise None."""
    masks = [part.marks(operator.ge, value) for part in parts]
    surplus = sum(count_ones(masks)) - count
    if surplus <= 0:
        return None if surplus else masks
    ties = [part.marks(operator.eq, value) for part in parts]
    tied = count_ones(ties)
    wanted = sum(tied) - surplus
    if wanted <= 0:
        return None
    for part, mask, tie, found in zip(parts, masks, ties, tied, strict=True):
        if found > wanted:
            mask[part.last(np.flatnonzero(tie), found - wanted)] = False
        wanted -= min(wanted, found)
    return masks


def _top_between(low: float, high: float, parts: Sequence[Flat], count: int) -> list[Array] | None:
    """Mark the `count` largest if the last one is in [low, high] and few are; otherwise None."""
    masks = [part.marks(operator.gt, high) for part in parts]
    bands = [part.marks(operator.ge, low) for part in parts]
    above, reached = sum(count_ones(masks)), sum(count_ones(bands))
    size = sum(len(band) for band in bands)
    if not above < count <= reached or reached - above > size // 4:
        return None
    for band, mask in zip(bands, masks, strict=True):
        band ^= mask
    inside = [np.flatnonzero(band) for band in bands]
    values = [part.values[positions] for part, positions in zip(parts, inside, strict=True)]
    place = partial(_places_inside, parts, inside)
    (chosen,) = top([Flat(joined(values), place=place)], count - above)
    start = 0
    for mask, positions in zip(masks, inside, strict=True):
        mask[positions] = chosen[start : start + len(positions)]
        start += len(positions)
    return masks


def _places_inside(parts: Sequence[Flat], inside: Sequence[Array], chosen: Array) -> Array:
    """Return the C-order places of chosen entries of a bracket, counted through all parts."""
    places, start, before = [], 0, 0
    for part, positions in zip(parts, inside, strict=True):
        mine = chosen[(chosen >= start) & (chosen < start + len(positions))] - start
        own = part.places(positions[mine]) + before
        places.append(own)
        start += len(positions)
        before = int(own.max()) + 1 if len(own) else before  # places may exceed a part's length
    return joined(places)
