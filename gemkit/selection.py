"""Selection: which weights stay, with exact counts; the only place in gemkit that selects.

Nothing is kept by comparing with a threshold alone: ties would then be kept, or dropped, all
together. Weights are ranked by importance, highest first, and among equals by position.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from heapq import heapify, heappop, heappush
from itertools import chain

import torch
from torch import Tensor

from gemkit.errors import ImportanceError
from gemkit.tensors import Tensors
from gemkit.topk import Flat, TieOutOfOrderError, count_ones, top

Shares = dict[tuple[str, ...], int]
"""Groups of layers, and how many weights each group keeps; weights compete within their group.

This makes "global" a value instead of a mode: it is one group of all layers, `{("a", "b"): 30}`,
where a layer-wise allocation is one group per layer, `{("a",): 10, ("b",): 20}`. Every layer is
in exactly one group; the order of the names in a group decides ties between layers.
"""


# --- which weights -------------------------------------------------------------------------------


@torch.no_grad()
def keep_top(importance: Tensors, alive: Tensors, shares: Shares) -> Tensors:
    """Keep the most important living weights of each group: boolean masks with exact counts.

    Equals a stable sort of the group's living weights by falling importance, cut after `count`:
    ties go to the lowest position (C order within a tensor, tensors in the group's order). What
    is not alive (boolean, or 0/1 of any type) never comes back and may have any importance.
    """
    if sorted(chain.from_iterable(shares)) != sorted(importance):
        raise ValueError(f"shares {list(shares)} must name every layer of {list(importance)} once")
    living = dict(zip(alive, count_ones(alive.values()), strict=True))
    _check_finite(importance, alive, living)
    masks: Tensors = {}
    for group, count in shares.items():
        present = sum(living[name] for name in group)
        if not 0 <= count <= present:
            raise ValueError(f"asked to keep {count} of the {present} living weights of {group}")
        if count == 0:
            chosen = [torch.zeros_like(alive[name], dtype=torch.bool) for name in group]
        elif count == present:
            chosen = [alive[name].to(torch.bool, copy=True) for name in group]
        else:
            chosen = _select(group, importance, alive, living, count)
        masks |= zip(group, chosen, strict=True)
    return {name: masks[name] for name in importance}


def _check_finite(importance: Tensors, alive: Tensors, living: dict[str, int]) -> None:
    """Refuse importance that cannot be ranked; only layers with odd extremes are looked into."""
    names = [name for name in importance if living[name]]
    if not names:
        return
    extremes = torch.stack(
        [torch.stack(torch.aminmax(_as_stored(importance[name]))) for name in names]
    )
    finite = extremes.isfinite().all(dim=1).tolist()
    problems = []
    for name in (name for name, fine in zip(names, finite, strict=True) if not fine):
        values = importance[name][alive[name].bool()]
        nans, infs = count_ones([values.isnan(), values.isinf()])
        if nans or infs:
            problems.append(f"'{name}' has {nans} nan and {infs} inf among {values.numel()}")
    if problems:
        raise ImportanceError(
            f"importance must be finite where weights are alive, but {'; '.join(problems)}: "
            "look for a diverging loss, or an overflow in half precision, where it is computed"
        )


def _select(
    group: Sequence[str], importance: Tensors, alive: Tensors, living: dict[str, int], count: int
) -> list[Tensor]:
    """Mark the top of a group, in C order only where ties make the order matter."""
    widest = reduce(torch.promote_types, [importance[name].dtype for name in group])
    values = [importance[name].to(widest) for name in group]
    where = [alive[name].bool() if living[name] < alive[name].numel() else None for name in group]
    try:
        return _marked(values, where, count, _as_stored)
    except TieOutOfOrderError:
        return _marked(values, where, count, lambda tensor: tensor)


def _marked(
    values: list[Tensor],
    where: list[Tensor | None],
    count: int,
    lay_out: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """Mark the top of all values, flattened in the layout that is given."""
    laid = [lay_out(value) for value in values]
    flat = [
        Flat(
            seen.reshape(-1),
            None
            if mask is None
            else (mask.permute(_CHANNELS_LAST) if seen is not value else mask).reshape(-1),
            ordered=seen is value,
        )
        for value, seen, mask in zip(values, laid, where, strict=True)
    ]
    masks = [mask.view(seen.shape) for mask, seen in zip(top(flat, count), laid, strict=True)]
    return [
        mask if seen is value else mask.permute(_CHANNELS_FIRST)
        for mask, seen, value in zip(masks, laid, values, strict=True)
    ]


_CHANNELS_LAST, _CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def _as_stored(tensor: Tensor) -> Tensor:
    """Return a view whose C order is the order in memory, for images' two common layouts."""
    if tensor.ndim == 4 and not tensor.is_contiguous():
        return tensor.permute(_CHANNELS_LAST)
    return tensor


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
