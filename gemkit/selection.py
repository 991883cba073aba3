"""Selection: which weights stay, with exact counts; the only place in gemkit that selects.

Nothing is kept by comparing with a threshold alone: ties would then be kept, or dropped, all
together. Weights are ranked by importance, highest first, and among equals by position.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial, reduce
from heapq import heapify, heappop, heappush
from itertools import chain
from math import inf
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from gemkit.errors import ImportanceError, some
from gemkit.tensors import Tensors
from gemkit.topk import (
    Array,
    Flat,
    as_array,
    as_tensor,
    count_ones,
    top,
)

Shares = dict[tuple[str, ...], int]
"""Groups of layers, and how many weights each group keeps; weights compete within their group.

This makes "global" a value instead of a mode: it is one group of all layers, `{("a", "b"): 30}`,
where a layer-wise allocation is one group per layer, `{("a",): 10, ("b",): 20}`. Every layer is
in exactly one group; the order of the names in a group decides ties between layers.
"""


Function = TypeVar("Function", bound=Callable[..., object])


def _never_traced(function: Function) -> Function:
    """Keep torch.compile out: counts are plain numbers here, and change at every freeze."""
    disable: Any = torch.compiler.disable  # torch gives it no type
    return cast(Function, disable(function))


# --- which weights -------------------------------------------------------------------------------


@_never_traced
@torch.no_grad()
def keep_top(importance: Tensors, alive: Tensors, shares: Shares) -> Tensors:
    """Keep the most important living weights of each group: boolean masks with exact counts.

    Equals a stable sort of the group's living weights by falling importance, cut after `count`:
    ties go to the lowest position (C order within a tensor, tensors in the group's order). What
    is not alive (boolean, or 0/1 of any type) never comes back and may have any importance.
    """
    if sorted(chain.from_iterable(shares)) != sorted(importance):
        raise ValueError(f"shares {list(shares)} must name every layer of {list(importance)} once")
    living = dict(zip(alive, count_living(alive), strict=True))
    importance = {name: _rankable(name, value) for name, value in importance.items()}
    _check_finite(importance, alive, living)

    masks: Tensors = {}
    for group, count in shares.items():
        chosen = _select(group, importance, alive, living, count)
        masks |= zip(group, chosen, strict=True)
    return {name: masks[name] for name in importance}


@_never_traced
@torch.no_grad()
def keep_top_blindly(importance: Tensors, alive: Tensors, shares: Shares) -> Tensors:
    """Keep what `keep_top` keeps, without ever looking: nothing here waits for the device.

    It takes a stable sort where `keep_top` looks for the last to keep, which is fine on a GPU; and
    it cannot refuse what it does not see: no share may exceed what is alive, and what is alive must
    be finite.
    """
    masks: Tensors = {}
    lowest = next(iter(importance.values())).new_full((), -inf, dtype=torch.float32)
    for group, count in shares.items():
        if count < 0:
            raise ValueError(f"asked to keep {count} weights of {group}")
        living = [alive[name].bool() for name in group]
        ranked = [
            torch.where(own, _rankable(name, importance[name]), lowest).contiguous().view(-1)
            for name, own in zip(group, living, strict=True)
        ]
        together = torch.cat(ranked) if len(ranked) > 1 else ranked[0]
        order = together.sort(descending=True, stable=True).indices
        chosen = torch.zeros_like(together, dtype=torch.bool).scatter_(0, order[:count], True)
        parts = torch.split(chosen, [len(layer) for layer in ranked])
        for name, part, own in zip(group, parts, living, strict=True):
            masks[name] = own & part.view(own.shape)
    return {name: masks[name] for name in importance}


@torch.no_grad()
def refuse_ties(importance: Tensors, alive: Tensors, chosen: Tensors, in_use: Tensors) -> None:
    """Refuse a choice that position alone has made: among equals, in a layer that is in use.

    That is a layer all of whose living weights are equally important, and of which some but not
    all are chosen. Layers of which nothing is in use are left alone: there is nothing to lose.
    """
    names = [name for name in importance if importance[name].numel()]
    facts = []
    for name in names:
        living, values = alive[name].bool(), _rankable(name, importance[name])
        low = values.masked_fill(~living, inf).min()
        high = values.masked_fill(~living, -inf).max()
        kept = chosen[name].count_nonzero()
        split = (kept > 0) & (kept < living.count_nonzero())
        facts.append((low == high) & split & in_use[name].any())
    found = torch.stack(facts).tolist() if facts else []
    tied = [name for name, is_tied in zip(names, found, strict=True) if is_tied]
    if tied:
        raise ImportanceError(
            f"all weights of {some(tied, 3)} that are left are equally important, so position "
            "alone would decide which of them stay; look whether signal reaches these layers "
            "(gemkit.prepare helps where scales or weights are 0), use other scores, or allow it "
            "with --allow-ties (plan=Plan(allow_ties=True); for select, allow_ties=True)"
        )


def count_living(alive: Tensors) -> list[int]:
    """Count what is alive in each layer, in one transfer from the device."""
    return count_ones(as_array(_flat(mask, _memory_order(mask))) for mask in alive.values())


def _rankable(name: str, importance: Tensor) -> Tensor:
    """Return importance as numbers with an order and a negative: whole ones and truths as reals."""
    if importance.is_complex():
        raise ImportanceError(
            f"importance of '{name}' is complex, and complex numbers have no order; return one "
            "real number for each weight, such as the absolute value"
        )
    return importance if importance.is_floating_point() else importance.double()


def _check_finite(importance: Tensors, alive: Tensors, living: dict[str, int]) -> None:
    """Refuse importance that cannot be ranked; only layers with odd sums are looked into."""
    names = [name for name in importance if living[name]]
    if not names:
        return
    # A sum is finite only if every term is: nan and inf survive any addition.
    sums = torch.stack([importance[name].sum() for name in names]).isfinite().tolist()
    problems = []
    for name in (name for name, fine in zip(names, sums, strict=True) if not fine):
        values = importance[name][alive[name].bool()]
        nans, infs = int(values.isnan().sum()), int(values.isinf().sum())
        if nans or infs:
            problems.append(f"'{name}' has {nans} nan and {infs} inf among {values.numel()}")
    if problems:
        raise ImportanceError(
            f"importance must be finite where weights are alive, but {'; '.join(problems)}: "
            "look for a diverging loss, or an overflow in half precision, where it is computed"
        )


def _select(
    group: tuple[str, ...],
    importance: Tensors,
    alive: Tensors,
    living: dict[str, int],
    count: int,
) -> list[Tensor]:
    """Mark the top of a group, looking at each layer as it lies in memory."""
    present = sum(living[name] for name in group)
    if not 0 <= count <= present:
        raise ValueError(f"asked to keep {count} of the {present} living weights of {group}")
    if count == 0:
        return [torch.zeros_like(alive[name], dtype=torch.bool) for name in group]
    if count == present:
        return [alive[name].to(torch.bool, copy=True) for name in group]
    widest = reduce(torch.promote_types, [importance[name].dtype for name in group])
    parts, orders = [], []
    for name in group:
        order = _memory_order(importance[name])
        everywhere = living[name] == alive[name].numel()
        where = None if everywhere else as_array(_flat(alive[name].bool(), order))
        values = as_array(_flat(importance[name], order).to(widest))
        place = None if order is None else partial(_c_position, importance[name].shape)
        parts.append(Flat(values, where, place))
        orders.append(order)
    return [
        _in_shape(as_tensor(mask), alive[name].shape, order)
        for mask, name, order in zip(top(parts, count), group, orders, strict=True)
    ]


def _memory_order(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the dimensions as they lie in memory, None where that is C order or unknown."""
    channels_last = (0, 2, 3, 1)
    if tensor.ndim == 4 and not tensor.is_contiguous():
        return channels_last
    return None


def _c_position(shape: torch.Size, position: Array) -> Array:
    """Turn positions in the channels-last layout of this shape into positions in C order."""
    channels, area = shape[1], shape[2] * shape[3]
    pixel, channel = position // channels, position % channels
    return (pixel // area * channels + channel) * area + pixel % area


def _flat(tensor: Tensor, order: tuple[int, ...] | None) -> Tensor:
    """Lay a tensor out in one dimension, its dimensions in this order."""
    return (tensor if order is None else tensor.permute(order)).reshape(-1)


def _in_shape(mask: Tensor, shape: torch.Size, order: tuple[int, ...] | None) -> Tensor:
    """Undo `_flat`."""
    if order is None:
        return mask.view(shape)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return mask.view([shape[dimension] for dimension in order]).permute(inverse)


# --- how many ------------------------------------------------------------------------------------


def apportion(weights: Sequence[int], capacity: Sequence[int], total: int) -> list[int]:
    """Split `total` in proportion to integer weights, none getting more than its capacity.

    Webster's (Sainte-Laguë's) divisor method: unit j = 0, 1, ... capacity - 1 of a layer has the
    quotient weight / (2j + 1), and the `total` largest quotients win; ties go to the lower index.
    So a smaller total never gives any layer more, and masks at lower densities nest inside those
    at higher ones. Rounding by largest remainders lacks that: weights 6, 6, 2 share 10 as 4, 4, 2
    but 11 as 5, 5, 1. What a full layer cannot take goes to the others in proportion, the fix
    point of "layers that would exceed density 1 become dense, solve again". Weight 0 gets
    something only when all others are full. All decisions are exact, in integers.
    """
    if not 0 <= total <= sum(capacity):
        raise ValueError(f"cannot split {total} over capacities that sum to {sum(capacity)}")
    layers = list(zip(weights, capacity, strict=True))
    share = min(total, sum(room for weight, room in layers if weight))
    # Rounding adds at most 1/2 to each, so no more than `share` is given at this level, and all
    # of it rightly: the quotients of at least 1 / (2 level). At most one per layer is left over.
    level = _water_level(layers, share - Fraction(len(layers), 2))
    counts = [min(room, int(level * weight + Fraction(1, 2))) for weight, room in layers]
    _hand_out_(counts, layers, share - sum(counts))
    left = total - share
    for index, (weight, room) in enumerate(layers):
        if not weight:
            counts[index] = min(room, left)
            left -= counts[index]
    return counts


def _water_level(layers: Sequence[tuple[int, int]], total: Fraction) -> Fraction:
    """Return the level at which min(capacity, level · weight) sums to `total` (0 if negative)."""
    open_weight = sum(weight for weight, _ in layers)
    weighted = [layer for layer in layers if layer[0]]
    for weight, room in sorted(weighted, key=lambda layer: Fraction(layer[1], layer[0])):
        if total * weight <= room * open_weight:
            return max(total, Fraction(0)) / open_weight
        total -= room
        open_weight -= weight
    return Fraction(0)


def _hand_out_(counts: list[int], layers: Sequence[tuple[int, int]], left: int) -> None:
    """Give the `left` next units to the largest quotients, one after the other."""
    queue = [
        (Fraction(-weight, 2 * counts[index] + 1), index)
        for index, (weight, room) in enumerate(layers)
        if weight and counts[index] < room
    ]
    heapify(queue)
    for _ in range(left):
        _, index = heappop(queue)
        counts[index] += 1
        weight, room = layers[index]
        if counts[index] < room:
            heappush(queue, (Fraction(-weight, 2 * counts[index] + 1), index))
