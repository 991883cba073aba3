"""The contract of structures: entries rearranged, none lost, and units kept whole and in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from gemkit.builtin.allocations import Global, Uniform
from gemkit.core.errors import FitError
from gemkit.core.selection import Shares, apportion
from gemkit.core.tensors import Tensors
from gemkit.parts.structure import Structure
from gemkit.testing.cases import Layers
from gemkit.testing.clause import RefusedError, clause, require
from gemkit.testing.strategies import SHAPES, seeds, variants
from gemkit.testing.watch import copied, no_global_randomness, same_everywhere, unchanged

FOLDED = (*SHAPES, (8, 4), (6, 8, 3, 3), (3, 72), (16, 12), (1, 1, 1, 1))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)

Folded = tuple[Structure, tuple[int, ...], torch.dtype]
Selected = tuple[Structure, Layers, float]


def shapes(part: Structure, device: torch.device) -> st.SearchStrategy[Folded]:
    """Draw the shape of a layer, and a type of numbers."""
    return st.tuples(variants(part), st.sampled_from(FOLDED), st.sampled_from(DTYPES))


def ranked(part: Structure, device: torch.device) -> st.SearchStrategy[Selected]:
    """Draw importance whose sums are exact, what is alive, and a density that prunes some."""
    drawn = st.builds(
        Layers,
        shapes=st.lists(st.sampled_from(FOLDED), min_size=1, max_size=4).map(tuple),
        style=st.sampled_from(["ties", "ties", "equal"]),
        alive=st.sampled_from([1.0, 1.0, 0.5, 0.0]),
        seed=seeds,
        device=st.just(device),
    )
    return st.tuples(variants(part), drawn, st.sampled_from([0.5, 0.75, 0.25, 0.1, 1.0, 0.01]))


class Chosen(NamedTuple):
    """What a structure was given, and the masks that it made of it."""

    importance: Tensors
    alive: Tensors
    shares: Shares
    masks: Tensors


def fitting(part: Structure, case: Layers) -> list[str]:
    """Name the layers of a case that the structure fits."""
    names = [f"layer{at}" for at, shape in enumerate(case.shapes) if part.fits(shape)]
    if not names:
        raise RefusedError("it fits none of the layers")
    return names


def chosen(part: Structure, case: Layers, density: float) -> Chosen:
    """Select by a structure; layers compete together, or each by itself."""
    names = fitting(part, case)
    importance = {name: case.values()[name] for name in names}
    alive = {name: case.masks()[name] for name in names}
    allocation = Global() if case.seed % 2 else Uniform()
    shares = allocation.keep(importance, alive, density)
    named = [*importance.items(), *((f"alive {name}", mask) for name, mask in alive.items())]
    try:
        with no_global_randomness(), unchanged("its input", lambda: copied(named)):
            masks = part.select(importance, alive, shares, density)
    except FitError as error:
        raise RefusedError(str(error)) from error
    return Chosen(importance, alive, shares, masks)


@clause(Structure, shapes, examples=60)
def folding_only_rearranges(part: Structure, case: Folded) -> None:
    """`fold` returns the entries of a layer that fits as [pools, units, size], each of them once.

    It does so for numbers of any type, and changes none.
    """
    part, shape, dtype = case
    fits = part.fits(shape)
    require(isinstance(fits, bool), f"fits returned {fits!r}")
    if not fits:
        return
    count = torch.Size(shape).numel()
    places = torch.arange(count).view(shape)
    folded = part.fold(places)
    require(folded.dtype == places.dtype, f"{places.dtype} becomes {folded.dtype}")
    require(folded.ndim == 3, f"{shape} becomes {tuple(folded.shape)}, not three dimensions")
    kept = folded.reshape(-1).sort().values
    require(folded.numel() == count, f"{count} entries become {folded.numel()}")
    require(torch.equal(kept, torch.arange(count)), "some entries are there twice, and others not")
    values = (places * 7 % 11).to(dtype)
    with unchanged("the layer", lambda: copied([("layer", values)])):
        again = part.fold(values)
    require(again.dtype == dtype, f"{dtype} becomes {again.dtype}")
    moved = values.reshape(-1)[folded]
    require(torch.equal(again, moved), f"entries of type {dtype} are arranged in another way")


@clause(Structure, ranked, on_devices=True)
def only_whole_living_units_are_kept(part: Structure, case: Selected) -> None:
    """`select` returns a boolean mask per layer; of a unit it keeps all that is alive, or nothing.

    Nothing is kept that is not alive.
    """
    part, drawn, density = case
    given = chosen(part, drawn, density)
    names = list(given.importance)
    require(isinstance(given.masks, dict), f"it returned a {type(given.masks).__name__}")
    require(list(given.masks) == names, f"the layers are {names}, the masks {list(given.masks)}")
    for name, mask in given.masks.items():
        alive = given.alive[name]
        require(mask.dtype == torch.bool, f"'{name}' is {mask.dtype}, not boolean")
        require(mask.shape == alive.shape, f"'{name}' has shape {tuple(mask.shape)}")
        require(mask.device == alive.device, f"'{name}' is on {mask.device}")
        require(not bool((mask & ~alive).any()), f"'{name}' keeps weights that are not alive")
        kept, living = part.fold(mask).sum(-1), part.fold(alive).sum(-1)
        whole = bool(((kept == 0) | (kept == living)).all())
        require(whole, f"'{name}' keeps a part of a unit: {kept.tolist()} of {living.tolist()}")


@clause(Structure, ranked, on_devices=True, applies=lambda part: part.units_of(0.5, 1) is None)
def only_whole_pruned_units_return(part: Structure, case: Selected) -> None:
    """`grow` returns a boolean mask per layer, of whole pruned units, within each share."""
    part, drawn, density = case
    given = chosen(part, drawn, density)
    dead = {name: ~mask for name, mask in given.masks.items()}
    room = {group: sum(int(dead[name].sum()) for name in group) // 2 for group in given.shares}
    with unchanged("what is alive", lambda: copied(given.masks.items())):
        grown = part.grow(given.importance, given.masks, room, density)
    for name, mask in grown.items():
        require(mask.dtype == torch.bool, f"'{name}' is {mask.dtype}, not boolean")
        require(not bool((mask & ~dead[name]).any()), f"'{name}' returns weights that are alive")
        kept, pruned = part.fold(mask).sum(-1), part.fold(dead[name]).sum(-1)
        require(bool(((kept == 0) | (kept == pruned)).all()), f"'{name}' returns a part of a unit")
    for group, count in room.items():
        returned = sum(int(grown[name].sum()) for name in group)
        require(returned <= count, f"{group} gets {returned} back, and its share is {count}")


class Pool(NamedTuple):
    """Units that compete: names, values, how many weights live in each, and whether it is kept."""

    units: list[str]
    values: list[float]
    living: list[int]
    kept: list[bool]

    def expected(self, *, weights: int | None = None, units: int = 0) -> list[bool]:
        """Let units enter, the highest first, while there is room for weights, or for units."""
        order = sorted(range(len(self.units)), key=lambda at: (-self.values[at], at))
        room = units if weights is None else weights
        enters = [False] * len(order)
        for at in (at for at in order if self.living[at]):
            room -= 1 if weights is None else self.living[at]
            if room < 0:
                break
            enters[at] = True
        return enters


def pools_of(part: Structure, name: str, given: Chosen) -> list[Pool]:
    """Return the pools of a layer."""
    alive = given.alive[name]
    values = part.fold(given.importance[name].double().masked_fill(~alive, 0)).sum(-1)
    tables = (values, part.fold(alive).sum(-1), part.fold(given.masks[name]).any(-1))
    return [
        Pool([f"unit {at} of pool {row} of '{name}'" for at in range(len(columns[0]))], *columns)
        for row, columns in enumerate(zip(*(table.tolist() for table in tables), strict=True))
    ]


def expectations(
    part: Structure, given: Chosen, density: float
) -> Iterator[tuple[Pool, list[bool]]]:
    """Yield every pool, and which of its units must be kept."""
    for group, share in given.shares.items():
        pools = {name: pools_of(part, name, given) for name in group}
        stay = {name: part.units_of(density, _units(part, given.alive[name])) for name in group}
        if None not in stay.values():
            for name, own in pools.items():
                yield from ((pool, pool.expected(units=stay[name] or 0)) for pool in own)
        elif all(len(own) == 1 for own in pools.values()):
            columns = zip(*(own for [own] in pools.values()), strict=True)
            joined = Pool(*([*chain.from_iterable(column)] for column in columns))
            yield joined, joined.expected(weights=share)
        else:
            [own] = pools.values()
            counts = apportion([1] * len(own), [sum(pool.living) for pool in own], share)
            for pool, count in zip(own, counts, strict=True):
                yield pool, pool.expected(weights=count)


def _units(part: Structure, layer: Tensor) -> int:
    return part.fold(layer).shape[1]


@clause(Structure, ranked, examples=50, on_devices=True)
def units_enter_in_rank_order(part: Structure, case: Selected) -> None:
    """`select` keeps the most important units of every pool, and the first among equals.

    A pool keeps as many as `units_of` says, or stops before the first unit that would exceed its
    share.
    """
    part, drawn, density = case
    for pool, right in expectations(part, chosen(part, drawn, density), density):
        kept, wanted = sum(pool.kept), sum(right)
        first = pool.units[0] if pool.units else "nothing"
        message = (
            f"{kept} of the {len(pool.units)} units from {first} on are kept, and not {wanted}"
        )
        require(kept == wanted, message)
        pairs = zip(pool.units, pool.kept, right, strict=True)
        wrong = [unit for unit, own, fine in pairs if own and not fine]
        require(not wrong, f"{', '.join(wrong[:1])} is kept in place of a more important one")


@clause(Structure, ranked)
def selecting_twice_gives_the_same(part: Structure, case: Selected) -> None:
    """`select` is a plain function of its input, whether or not it looks at what it is given."""
    part, drawn, density = case
    given = chosen(part, drawn, density)
    require(same_everywhere(given.masks, chosen(part, drawn, density).masks), "the two differ")
    blind = part.select(given.importance, given.alive, given.shares, density, checked=False)
    require(same_everywhere(given.masks, blind), "with checked=False it keeps other weights")


@clause(Structure, ranked)
def only_the_order_of_living_weights_counts(part: Structure, case: Selected) -> None:
    """Importance may be of whole numbers, and may be anything where a weight is not alive."""
    part, drawn, density = case
    given = chosen(part, drawn, density)
    whole = {name: (value * 4).long() for name, value in given.importance.items()}
    masks = part.select(whole, given.alive, given.shares, density)
    require(same_everywhere(given.masks, masks), "whole numbers in the same order keep others")
    odd = {
        name: value.masked_fill(~given.alive[name], torch.nan)
        for name, value in given.importance.items()
    }
    masks = part.select(odd, given.alive, given.shares, density)
    require(same_everywhere(given.masks, masks), "it reads the importance of what is not alive")


@clause(Structure, lambda part, device: st.tuples(variants(part), st.sampled_from(FOLDED)))
def fewer_units_stay_at_a_lower_density(
    part: Structure, case: tuple[Structure, tuple[int, ...]]
) -> None:
    """`units_of` is None, or a number of units that never rises as the density falls."""
    part, shape = case
    if not part.fits(shape):
        return
    units = _units(part, torch.zeros(shape))
    falling = [1.0, 0.9, 0.5, 0.25, 0.1, 0.01]
    stay = [part.units_of(density, units) for density in falling]
    if all(count is None for count in stay):
        return
    message = f"of {units} units, {stay} stay at the densities {falling}"
    require(all(type(count) is int and 0 <= count <= units for count in stay), message)
    require(all((one or 0) >= (other or 0) for one, other in pairwise(stay)), message)
