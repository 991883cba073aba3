"""The contract of roundings: masks of zeros and ones, drawn from their generator alone."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gemkit.builtin.allocations import Global, Uniform
from gemkit.parts import Rounding
from gemkit.selection import Shares
from gemkit.tensors import Tensors, generator, kept
from gemkit.testing.cases import Layers
from gemkit.testing.clause import clause, require
from gemkit.testing.strategies import layers, variants
from gemkit.testing.watch import (
    at_global_seed,
    copied,
    no_global_randomness,
    same_everywhere,
    unchanged,
)

Rounded = tuple[Rounding, Layers]


def views(part: Rounding, device: torch.device) -> st.SearchStrategy[Rounded]:
    """Draw views of scores in [0, 1]: ties, and both ends, among them."""
    return st.tuples(variants(part), layers(device=device))


def seen(part: Rounding, case: Layers) -> Tensors:
    """Return the view; scores without bounds where the rounding takes them."""
    if part.needs_unit_interval:
        return case.values()
    return {name: value * 4 - 2 for name, value in case.values().items()}


def shares_of(case: Layers) -> Shares:
    """Let all layers compete, or every layer for itself."""
    allocation = Global() if case.seed % 2 else Uniform()
    return allocation.keep(case.values(), case.masks(), 0.5)


def masks_of(part: Rounding, case: Layers) -> Tensors:
    """Round a case from the start."""
    rng = generator(case.seed, "rounding")
    return part.masks(seen(part, case), case.masks(), shares_of(case), rng)


@clause(Rounding, views, on_devices=True)
def masks_are_zeros_and_ones(part: Rounding, case: Rounded) -> None:
    """`masks` returns for every layer, in order, a mask of its shape that holds only 0 and 1."""
    part, drawn = case
    view, masks = seen(part, drawn), masks_of(part, drawn)
    require(isinstance(masks, dict), f"it returned a {type(masks).__name__}, not a dict")
    require(list(masks) == list(view), f"the layers are {list(view)}, the masks {list(masks)}")
    for name, mask in masks.items():
        require(mask.shape == view[name].shape, f"'{name}' has shape {tuple(mask.shape)}")
        require(mask.device == view[name].device, f"'{name}' is on {mask.device}")
        require(bool(((mask == 0) | (mask == 1)).all()), f"'{name}' holds {mask.tolist()}")


@clause(Rounding, views, on_devices=True)
def the_same_generator_gives_the_same_masks(part: Rounding, case: Rounded) -> None:
    """Masks depend on the scores, what is alive, the shares and the generator alone."""
    with no_global_randomness():
        masks_of(*case)
    one, other = (at_global_seed(seed, lambda: masks_of(*case)) for seed in (1, 2))
    require(same_everywhere(one, other), "rounding twice gave two results")


@clause(Rounding, views)
def rounding_leaves_the_scores_as_they_were(part: Rounding, case: Rounded) -> None:
    """Rounding changes neither the view nor what is alive."""
    part, drawn = case
    view, alive = seen(part, drawn), drawn.masks()
    named = [*view.items(), *((f"alive {name}", mask) for name, mask in alive.items())]
    with unchanged("its input", lambda: copied(named)):
        masks = part.masks(view, alive, shares_of(drawn), generator(0, "rounding"))
        part.slope(view, masks)


@clause(Rounding, views, on_devices=True, applies=lambda part: part.spends_budget)
def a_rounding_that_spends_the_budget_keeps_just_that(part: Rounding, case: Rounded) -> None:
    """With `spends_budget` every group keeps the count of its share, among what is alive."""
    part, drawn = case
    masks, alive = masks_of(part, drawn), drawn.masks()
    for group, count in shares_of(drawn).items():
        living = {name: masks[name].bool() & alive[name] for name in group}
        require(kept(living) == count, f"{group} keeps {kept(living)} instead of {count}")


@clause(Rounding, views, on_devices=True)
def the_slope_is_finite(part: Rounding, case: Rounded) -> None:
    """`slope` is None, or finite, with one number for every score, at 0 and 1 too."""
    part, drawn = case
    view = seen(part, drawn)
    slopes = part.slope(view, masks_of(part, drawn))
    if slopes is None:
        return
    require(list(slopes) == list(view), f"the layers are {list(view)}, the slopes {list(slopes)}")
    for name, slope in slopes.items():
        require(slope.shape == view[name].shape, f"it has shape {tuple(slope.shape)}")
        require(bool(slope.isfinite().all()), f"it is {slope.tolist()}")
