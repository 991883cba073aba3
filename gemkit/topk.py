"""The largest entries of flat arrays, exactly as many as asked for, faster than `kthvalue`.

Learned scores are ranked in every training step, so this is written for speed. Every shortcut
checks itself and gives way to ranking everything: none can change the result. On the CPU it works
on NumPy's arrays, whose comparisons, counts and partition are several times faster than torch's;
elsewhere on tensors. All but the few functions below that say so is the same for both.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import gcd, inf, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Array = Any  # np.ndarray on the CPU, Tensor elsewhere

_SMALL = 1 << 14  # entries; up to here a sample tells too little


class Flat(NamedTuple):
    """Values in one dimension, and where they count (None means everywhere)."""

    values: Array
    living: Array | None = None
    place: Callable[[Array], Array] | None = None
    """Turns positions here into positions in C order, which decide ties (None: they are)."""

    def ranked(self, stride: int = 1) -> Array:
        """Return every `stride`-th value, with -inf where it does not count."""
        values = self.values[::stride]
        if self.living is None:
            return values
        where = np.where if isinstance(values, np.ndarray) else torch.where
        return where(self.living[::stride], values, -inf)

    def marks(self, compare: Callable[[Array, float], Array], bound: float) -> Array:
        """Compare with a bound, true only where values count."""
        marked = compare(self.values, bound)
        if self.living is not None:
            marked &= self.living
        return marked

    def places(self, positions: Array) -> Array:
        """Return where in C order these positions are."""
        return positions if self.place is None else self.place(positions)

    def last(self, positions: Array, count: int) -> Array:
        """Return those `count` of rising positions that come last in C order."""
        if self.place is None:
            return positions[len(positions) - count :]
        places = self.place(positions)
        return positions[places >= _nth_largest(places, count)]


def top(parts: Sequence[Flat], count: int) -> list[Array]:
    """Mark the `count` largest entries of all parts together; ties go to the lowest position.

    `count` is at least 1 and at most the number that count, and those are finite and of one type.
    As Floyd and Rivest (1975) select: a sample brackets the last entry to mark, one pass sorts
    out what lies in the bracket, and only that is ranked.
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
    assert masks is not None, "the entries down to the `count`-th largest are the top"
    return masks


# --- what differs between NumPy and torch --------------------------------------------------------


def as_array(tensor: Tensor) -> Array:
    """Return a tensor's values for `top`: NumPy's view of them where it can have one."""
    if not tensor.is_cpu:
        return tensor
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()  # exact, and NumPy does not know or is slow with these
    return tensor.numpy()


def as_tensor(array: Array) -> Tensor:
    """Return a mask of `top` as a tensor."""
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def count_ones(masks: Iterable[Array]) -> list[int]:
    """Count the nonzero entries of each mask, in one transfer from the device."""
    masks = list(masks)
    if all(isinstance(mask, np.ndarray) for mask in masks):
        return [int(np.count_nonzero(mask)) for mask in masks]
    counts: list[int] = torch.stack([mask.count_nonzero() for mask in masks]).tolist()
    return counts


def _positions(marks: Array) -> Array:
    """Return where a flat mask is one."""
    return np.flatnonzero(marks) if isinstance(marks, np.ndarray) else marks.nonzero().view(-1)


def joined(arrays: Sequence[Array]) -> Array:
    """Put arrays behind each other."""
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if isinstance(arrays[0], np.ndarray) else torch.cat(list(arrays))


def _nth_largest(values: Array, count: int) -> float:
    """Return the `count`-th largest value.

    NumPy's partition slows down where many values tie for the smallest, as zeros and -inf do
    here, so it gets the values negated.
    """
    if isinstance(values, np.ndarray):
        return -float(np.partition(-values, count - 1)[count - 1])
    return float(values.kthvalue(len(values) - count + 1).values)


# --- the same for both ---------------------------------------------------------------------------


def sample_stride(size: int) -> int | None:
    """Return which of so many entries make a good sample, every how many-th; None if none do.

    A stride without common factors with kernel sizes and channel counts gives all their positions
    a turn.
    """
    if size <= _SMALL:
        return None
    stride = int(size ** (1 / 3))
    while gcd(stride, 2 * 3 * 5 * 7) > 1:
        stride -= 1
    return stride


def bracket(sample: Array, count: int, size: int) -> tuple[float, float]:
    """Guess what the `count`-th largest of `size` lies between; equal bounds if it ties."""
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
            mask[part.last(_positions(tie), found - wanted)] = False
        wanted -= min(wanted, found)
    return masks


def _top_between(low: float, high: float, parts: Sequence[Flat], count: int) -> list[Array] | None:
    """Mark the `count` largest if few lie in [low, high] and the last is one; otherwise None."""
    masks = [part.marks(operator.gt, high) for part in parts]
    bands = [part.marks(operator.ge, low) for part in parts]
    above, reached = sum(count_ones(masks)), sum(count_ones(bands))
    size = sum(len(band) for band in bands)
    if not above < count <= reached or reached - above > size // 4:
        return None
    for band, mask in zip(bands, masks, strict=True):
        band ^= mask
    inside = [_positions(band) for band in bands]
    values = [part.values[positions] for part, positions in zip(parts, inside, strict=True)]
    place = partial(_places_inside, parts, inside)
    (chosen,) = top([Flat(joined(values), place=place)], count - above)
    start = 0
    for mask, positions in zip(masks, inside, strict=True):
        mask[positions] = chosen[start : start + len(positions)]
        start += len(positions)
    return masks


def _places_inside(parts: Sequence[Flat], inside: Sequence[Array], chosen: Array) -> Array:
    """Return the places of some of the entries inside a bracket, counted through all parts."""
    places, start, before = [], 0, 0
    for part, positions in zip(parts, inside, strict=True):
        mine = chosen[(chosen >= start) & (chosen < start + len(positions))] - start
        own = part.places(positions[mine]) + before
        places.append(own)
        start += len(positions)
        before = int(own.max()) + 1 if len(own) else before  # a part's places may exceed its length
    return joined(places)
