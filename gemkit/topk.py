"""The largest entries of flat tensors, exactly as many as asked for, faster than `kthvalue`.

Learned scores are ranked in every training step, so this is written for speed. Every shortcut
checks itself and gives way to ranking everything: none can change the result.
"""

import operator
from collections.abc import Callable, Iterable
from math import gcd, inf, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_SMALL = 1 << 14  # entries; up to here a sample tells too little
_LARGE = 1 << 18  # entries; from here on ranking a bracket beats ranking everything
_NUMPY_TYPES = (torch.float32, torch.float64)


class Flat(NamedTuple):
    """Values in one dimension, and where they count (None means everywhere)."""

    values: Tensor
    living: Tensor | None = None
    ordered: bool = True  # whether position here is position in C order, which decides ties

    def ranked(self, stride: int = 1) -> Tensor:
        """Return every `stride`-th value, with -inf where it does not count."""
        values = self.values[::stride]
        return values if self.living is None else values.where(self.living[::stride], -inf)

    def marks(self, compare: Callable[..., Any], bound: float) -> Tensor:
        """Compare with a bound, true only where values count."""
        if self.values.is_cpu and self.values.dtype in _NUMPY_TYPES:
            # NumPy vectorizes comparisons that give booleans; torch does not, and takes five times
            # as long.
            marked = torch.from_numpy(np.asarray(compare(self.values.numpy(), bound)))
        else:
            marked = compare(self.values, bound)
        return marked if self.living is None else marked.logical_and_(self.living)


class TieOutOfOrderError(Exception):
    """Ties must be told apart by position, and positions are not in C order."""


def top(parts: list[Flat], count: int) -> list[Tensor]:
    """Mark the `count` largest entries of all parts together; ties go to the lowest position.

    `count` is at least 1 and at most the number that count, and those are finite and of one type.
    As Floyd and Rivest (1975) select: a sample brackets the last entry to mark, one pass sorts
    out what lies in the bracket, and only that is ranked.
    """
    size = sum(part.values.numel() for part in parts)
    masks = None
    if size > _SMALL:
        low, high = _bracket(parts, count, size)
        if low == high:
            masks = _top_down_to(low, parts, count)
        elif size > _LARGE:
            masks = _top_between(low, high, parts, count)
    if masks is None:
        masks = _top_down_to(_nth_largest(_joined(parts), count), parts, count)
    assert masks is not None, "the entries down to the `count`-th largest are the top"
    return masks


def count_ones(masks: Iterable[Tensor]) -> list[int]:
    """Count the nonzero entries of each mask, in one transfer from the device."""
    masks = list(masks)
    if all(mask.is_cpu and mask.dtype == torch.bool for mask in masks):
        return [int(np.count_nonzero(mask.numpy())) for mask in masks]  # three times faster
    return torch.stack([mask.count_nonzero() for mask in masks]).tolist()


def _positions(marks: Tensor) -> Tensor:
    """Return where a flat mask is one."""
    if marks.is_cpu:
        return torch.from_numpy(np.flatnonzero(marks.numpy()))  # several times faster
    return marks.nonzero().view(-1)


def _joined(parts: list[Flat], stride: int = 1) -> Tensor:
    """Put every `stride`-th ranked value of all parts into one tensor."""
    ranked = [part.ranked(stride) for part in parts]
    return ranked[0] if len(ranked) == 1 else torch.cat(ranked)


def _nth_largest(values: Tensor, count: int) -> float:
    """Return the `count`-th largest value.

    On CPUs NumPy's vectorized partition is many times faster than `kthvalue`. It slows down where
    many values tie for the smallest, as zeros and -inf do here, so it gets the values negated.
    """
    if not values.is_cpu:
        return float(values.kthvalue(values.numel() - count + 1).values)
    negated = values.to(torch.promote_types(values.dtype, torch.float32)).neg().numpy()
    negated.partition(count - 1)
    return -float(negated[count - 1])


def _bracket(parts: list[Flat], count: int, size: int) -> tuple[float, float]:
    """Guess from a sample what the `count`-th largest lies between; equal bounds if it ties."""
    # Up to _LARGE it only has to find heavy ties, and a smaller sample does. A stride without
    # common factors with kernel sizes and channel counts gives all their positions a turn.
    stride = int(size ** (1 / 3 if size > _LARGE else 1 / 2))
    while gcd(stride, 2 * 3 * 5 * 7) > 1:
        stride -= 1
    sample = _joined(parts, stride)
    middle = sample.numel() * count / size
    margin = 3 * sqrt(middle * (1 - count / size)) + 2  # three standard deviations
    first, last = int(middle - margin), int(middle + margin) + 1
    high = _nth_largest(sample, first) if first > 0 else inf
    low = _nth_largest(sample, last) if last <= sample.numel() else -inf
    return low, high


def _top_down_to(value: float, parts: list[Flat], count: int) -> list[Tensor] | None:
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
            if wanted and not part.ordered:
                raise TieOutOfOrderError
            end = _length_with(tie, wanted)
            mask[end:].logical_xor_(tie[end:])
        wanted -= min(wanted, found)
    return masks


def _length_with(marks: Tensor, wanted: int) -> int:
    """Return the shortest length at which a flat mask has `wanted` ones, by halving."""
    start, end = 0, marks.numel() if wanted else 0
    while end - start > 1:
        middle = (start + end) // 2
        found = int(marks[start:middle].count_nonzero())
        if found >= wanted:
            end = middle
        else:
            start, wanted = middle, wanted - found
    return end


def _top_between(low: float, high: float, parts: list[Flat], count: int) -> list[Tensor] | None:
    """Mark the `count` largest if few lie in [low, high] and the last is one; otherwise None."""
    masks = [part.marks(operator.gt, high) for part in parts]
    bands = [part.marks(operator.ge, low) for part in parts]
    above, reached = sum(count_ones(masks)), sum(count_ones(bands))
    size = sum(band.numel() for band in bands)
    if not above < count <= reached or reached - above > size // 4:
        return None
    for band, mask in zip(bands, masks, strict=True):
        band.logical_xor_(mask)
    places = [_positions(band) for band in bands]
    inside = [part.values.index_select(0, p) for part, p in zip(parts, places, strict=True)]
    ordered = all(part.ordered for part in parts)
    (chosen,) = top([Flat(torch.cat(inside), ordered=ordered)], count - above)
    pieces = torch.split(chosen, [place.numel() for place in places])
    for mask, place, piece in zip(masks, places, pieces, strict=True):
        mask.scatter_(0, place, piece)
    return masks
