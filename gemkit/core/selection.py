"""Select the weights to keep, with exact counts. No other module selects.

Comparing with a threshold would keep or drop all ties together. Weights are ranked by importance,
highest first, and ties by position.
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

from gemkit.core.rankable import overflowing, rankable, refuse_not_finite, refuse_tied, tied
from gemkit.core.tensors import Tensors, as_array, counts, names_where
from gemkit.core.topk import Array, Flat, top

Shares = dict[tuple[str, ...], int]
"""Groups of layers, and how many weights each group keeps; weights compete within their group.

A global allocation is one group of all layers, `{("a", "b"): 30}`; a layer-wise one has one group
per layer, `{("a",): 10, ("b",): 20}`. Every layer is in exactly one group; the order of the names
in a group decides ties between layers.
"""

Function = TypeVar("Function", bound=Callable[..., object])


def never_traced(function: Function) -> Function:
    """Exclude a function from torch.compile: its counts are Python ints that change per freeze."""
    disable: Any = torch.compiler.disable  # torch gives it no type
    return cast(Function, disable(function))


@never_traced
@torch.no_grad()
def keep_top(
    importance: Tensors,
    alive: Tensors,
    shares: Shares,
    *,
    in_use: Tensors | None = None,
    checked: bool = True,
) -> Tensors:
    """Keep the most important living weights of each group: boolean masks with exact counts.

    Equals a stable sort of the group's living weights by falling importance, cut after `count`:
    ties go to the lowest position (C order within a tensor, tensors in the group's order). What
    is not alive (boolean, or 0/1 of any type) never comes back and may have any importance. With
    `in_use`, the current mask, refuse what `refuse_ties` refuses. Without `checked`, nothing is
    read back from a device, and its importance must be finite.
    """
    on_cpu = all(value.is_cpu for value in importance.values())
    if not checked and not on_cpu:
        return keep_top_unchecked(importance, alive, shares)
    if sorted(chain.from_iterable(shares)) != sorted(importance):
        raise ValueError(f"shares {list(shares)} must name every layer of {list(importance)} once")
    living = counts(alive)
    for group, count in shares.items():
        present = sum(living[name] for name in group)
        if not 0 <= count <= present:
            raise ValueError(f"asked to keep {count} of the {present} alive weights of {group}")
    importance = {name: rankable(name, value) for name, value in importance.items()}
    unfit = overflowing(importance, living)
    if on_cpu:
        (odd,) = names_where(unfit)
        refuse_not_finite(odd, importance, alive)
        unfit = {}
        chosen: Tensors = {}
        for group, count in shares.items():
            chosen |= zip(group, _select(group, importance, alive, living, count), strict=True)
        masks = {name: chosen[name] for name in importance}
    else:
        masks = keep_top_unchecked(importance, alive, shares)
    ties = {} if in_use is None else tied(importance, alive, masks, in_use)
    odd, equal = names_where(unfit, ties)  # one transfer from the device
    refuse_not_finite(odd, importance, alive)
    refuse_tied(equal)
    return masks


@never_traced
@torch.no_grad()
def keep_top_unchecked(importance: Tensors, alive: Tensors, shares: Shares) -> Tensors:
    """Return the same masks as `keep_top` without waiting for the device.

    It uses a full stable sort, which is fast on a GPU. The input is not checked: no share may
    exceed the number of alive weights, and their importance must be finite.
    """
    masks: Tensors = {}
    lowest = next(iter(importance.values())).new_full((), -inf, dtype=torch.float32)
    for group, count in shares.items():
        if count < 0:
            raise ValueError(f"asked to keep {count} weights of {group}")
        living = [alive[name].bool() for name in group]
        ranked = [
            torch.where(own, rankable(name, importance[name]), lowest).contiguous().view(-1)
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
    """Refuse a selection that position alone has decided.

    That is a layer in which all living weights are equally important and some but not all are
    chosen. Layers without a weight in use are ignored.
    """
    importance = {name: rankable(name, value) for name, value in importance.items()}
    (equal,) = names_where(tied(importance, alive, chosen, in_use))
    refuse_tied(equal)


def check_finite(importance: Tensors, alive: Tensors) -> None:
    """Refuse importance that cannot be ranked: complex, or not finite where weights are alive."""
    real = {name: rankable(name, value) for name, value in importance.items()}
    (odd,) = names_where(overflowing(real, counts(alive)))
    refuse_not_finite(odd, real, alive)


def _select(
    group: tuple[str, ...],
    importance: Tensors,
    alive: Tensors,
    living: dict[str, int],
    count: int,
) -> list[Tensor]:
    """Mark the top of a group on the CPU, with every layer in the order of its memory."""
    if count == 0:
        return [torch.zeros_like(alive[name], dtype=torch.bool) for name in group]
    if count == sum(living[name] for name in group):
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
        _in_shape(torch.from_numpy(mask), alive[name].shape, order)
        for mask, name, order in zip(top(parts, count), group, orders, strict=True)
    ]


def _memory_order(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the order of dimensions in memory, None if that is C order or unknown."""
    channels_last = (0, 2, 3, 1)
    if tensor.ndim == 4 and not tensor.is_contiguous():
        return channels_last
    return None


def _c_position(shape: torch.Size, position: Array) -> Array:
    """Convert positions in channels-last layout to positions in C order."""
    channels, area = shape[1], shape[2] * shape[3]
    pixel, channel = position // channels, position % channels
    in_order: Array = (pixel // area * channels + channel) * area + pixel % area
    return in_order


def _flat(tensor: Tensor, order: tuple[int, ...] | None) -> Tensor:
    """Flatten a tensor with its dimensions in this order."""
    return (tensor if order is None else tensor.permute(order)).reshape(-1)


def _in_shape(mask: Tensor, shape: torch.Size, order: tuple[int, ...] | None) -> Tensor:
    """Undo `_flat`."""
    if order is None:
        return mask.view(shape)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return mask.view([shape[dimension] for dimension in order]).permute(inverse)


def apportion(weights: Sequence[int], capacity: Sequence[int], total: int) -> list[int]:
    """Split `total` in proportion to integer weights, at most `capacity` each, in exact integers.

    Webster's (Sainte-Laguë's) divisor method: unit j = 0, 1, ... capacity - 1 of a layer has the
    quotient weight / (2j + 1), and the `total` largest quotients win; ties go to the lower index.
    So a smaller total never gives any layer more, and masks at lower densities nest inside those
    at higher ones. Rounding by largest remainders lacks that: weights 6, 6, 2 share 10 as 4, 4, 2
    but 11 as 5, 5, 1. What a full layer cannot take goes to the others in proportion. Weight 0
    gets something only when all others are full.
    """
    if not 0 <= total <= sum(capacity):
        raise ValueError(f"cannot split {total} over capacities that sum to {sum(capacity)}")
    layers = list(zip(weights, capacity, strict=True))
    share = min(total, sum(room for weight, room in layers if weight))
    # Rounding adds at most 1/2 per layer, so this level never gives more than `share`, and only
    # to quotients of at least 1 / (2 level). At most one unit per layer is left over.
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
    """Give the `left` remaining units to the largest quotients, one by one."""
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
