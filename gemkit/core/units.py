"""Selection of whole units: filters, or the weights of a row or block."""

from collections.abc import Callable

import torch
from torch import Tensor

from gemkit.core.errors import FitError
from gemkit.core.rankable import rankable
from gemkit.core.selection import Shares, check_finite, never_traced
from gemkit.core.tensors import Tensors

Fold = Callable[[Tensor], Tensor]
"""Arranges the entries of a layer as [pools, units, size]."""
PerPool = Callable[[int], int | None]
"""Returns how many of this many units a pool keeps; None leaves that to the share of the layer."""


@never_traced
@torch.no_grad()
def keep_units(
    importance: Tensors,
    alive: Tensors,
    shares: Shares,
    fold: Fold,
    per_pool: PerPool = lambda units: None,
    *,
    checked: bool = True,
    beside: Tensors | None = None,
) -> Tensors:
    """Keep the most important units of each group of layers, as boolean masks.

    A unit is as important as the sum of its living weights. If a layer is one pool, units enter in
    rank order, and stop before the first that would exceed the share of their group. If a layer is
    several pools, each keeps `per_pool` units, or its part of the layer's share. Ties go to the
    lowest position. Without `checked`, nothing is read back from the device. `beside` are units
    that are kept already; they count when pools share alike.
    """
    if checked:
        check_finite(importance, alive)
    check_groups(alive, shares, fold, per_pool)
    living = {name: mask.bool() for name, mask in alive.items()}
    values = units_of(living_values(importance, living), fold)
    sizes = units_of(living, fold)
    chosen: Tensors = {}
    for group, count in shares.items():
        stay = {name: per_pool(values[name].shape[1]) for name in group}
        if None not in stay.values():
            chosen |= {name: _best(values[name], sizes[name], stay[name] or 0) for name in group}
        elif all(len(values[name]) == 1 for name in group):
            value, size = (
                torch.cat([own[name].view(-1) for name in group]) for own in (values, sizes)
            )
            entered = _enter(_order(value, size), size, count)
            parts = torch.split(entered, [sizes[name].numel() for name in group])
            chosen |= {name: part[None] for name, part in zip(group, parts, strict=True)}
        else:
            for name in group:
                taken = None if beside is None else units_of(beside, fold)[name].count_nonzero(1)
                chosen[name] = _evenly(values[name], sizes[name], count, taken)
    return {name: _spread(chosen[name], living[name], fold) for name in importance}


def check_groups(alive: Tensors, shares: Shares, fold: Fold, per_pool: PerPool) -> None:
    """Refuse groups of several layers whose units compete within pools."""
    for group in shares:
        shapes = [fold(alive[name]).shape for name in group]
        shared = any(pools > 1 and per_pool(units) is None for pools, units, _ in shapes)
        if len(group) > 1 and shared:
            raise FitError(
                "weights that compete within a row cannot compete across layers; choose "
                "allocation 'uniform' or 'erk'"
            )


def living_values(importance: Tensors, alive: Tensors) -> Tensors:
    """Return importance in at least single precision, with zeros for pruned weights."""
    real = {name: rankable(name, value) for name, value in importance.items()}
    return {
        name: torch.where(alive[name], value, 0).to(torch.promote_types(value.dtype, torch.float32))
        for name, value in real.items()
    }


def units_of(tensors: Tensors, fold: Fold) -> Tensors:
    """Sum every unit of every layer: [pools, units]."""
    return {name: fold(tensor).sum(-1) for name, tensor in tensors.items()}


def _order(values: Tensor, sizes: Tensor) -> Tensor:
    """Return the positions of units in the last dimension, highest first.

    Among equals the lowest position comes first; units without weights come last.
    """
    ranked = values.masked_fill(sizes == 0, -torch.inf)
    return torch.sort(ranked, dim=-1, descending=True, stable=True).indices


def _ranks(values: Tensor, sizes: Tensor) -> Tensor:
    """Return the rank of every unit in that order."""
    order = _order(values, sizes)
    places = torch.arange(values.shape[-1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def _best(values: Tensor, sizes: Tensor, count: int) -> Tensor:
    """Keep the highest living units of every pool."""
    return (_ranks(values, sizes) < count) & (sizes > 0)


def _enter(order: Tensor, sizes: Tensor, count: int) -> Tensor:
    """Let units enter in this order until the next would exceed this count of weights."""
    ordered = sizes[order]
    # The first unit that does not fit is the end, even if a smaller one would fit after it.
    enters = ((ordered.cumsum(0) > count) | (ordered == 0)).cumsum(0) == 0
    return torch.zeros_like(enters).scatter_(0, order, enters)


def _evenly(values: Tensor, sizes: Tensor, count: int, taken: Tensor | None) -> Tensor:
    """Let units of several pools enter in turns: the best of every pool, then the second best.

    Pools keep the same number, and the first ones take the remainder, as in
    `gemkit.core.selection.apportion` with equal weights. A pool that has `taken` some already
    skips as many turns.
    """
    places = torch.arange(len(values), device=values.device)[:, None]
    ranks = _ranks(values, sizes) + (0 if taken is None else taken[:, None])
    turns = (ranks * len(values) + places).masked_fill(sizes == 0, torch.iinfo(ranks.dtype).max)
    order = torch.sort(turns.view(-1)).indices
    return _enter(order, sizes.view(-1), count).view_as(sizes)


def _spread(chosen: Tensor, alive: Tensor, fold: Fold) -> Tensor:
    """Expand a selection of units to a mask in the shape of the layer."""
    places = fold(torch.arange(alive.numel(), device=alive.device).view(alive.shape))
    mask = torch.zeros(alive.numel(), dtype=torch.bool, device=alive.device)
    mask[places.reshape(-1)] = chosen[..., None].expand(places.shape).reshape(-1)
    return mask.view(alive.shape) & alive
