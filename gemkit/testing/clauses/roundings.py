"""The contract of roundings: masks of zeros and ones, drawn from their generator alone."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gemkit.builtin.allocations import Global, Uniform
from gemkit.builtin.structures import Filters, Weights
from gemkit.core.selection import Shares
from gemkit.core.tensors import Tensors, generator, kept
from gemkit.parts.now import Now
from gemkit.parts.rounding import Rounding
from gemkit.parts.structure import Structure
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


def moment(
    case: Layers,
    alive: Tensors | None = None,
    *,
    step: float = 5.0,
    structure: Structure = Weights(),  # noqa: B008 - a part is frozen
) -> Now:
    """Return a moment in the middle of a search."""
    living = case.masks() if alive is None else alive
    shares = shares_of(case)
    return Now(
        step=torch.tensor(step, device=case.device),
        steps=10,
        alive=living,
        gates={name: mask.float() for name, mask in living.items()},
        state={"of_the_regularizer": torch.ones(3, device=case.device)},
        rng=generator(case.seed, "rounding"),
        select=lambda view: structure.select(view, living, shares, 0.5, checked=False),
    )


def masks_of(part: Rounding, case: Layers) -> Tensors:
    """Round a case from the start."""
    return part.masks(seen(part, case), moment(case))


@clause(Rounding, views, on_devices=True)
def masks_are_zeros_and_ones(part: Rounding, case: Rounded) -> None:
    """`masks` and `hard` return for every layer, in order, a mask of its shape of 0 and 1.

    Where `soft` is true, `masks` returns numbers from 0 to 1.
    """
    part, drawn = case
    view = seen(part, drawn)
    check_masks(view, part.hard(view, moment(drawn)), soft=False)
    check_masks(view, masks_of(part, drawn), soft=part.soft)


def check_masks(view: Tensors, masks: Tensors, *, soft: bool) -> None:
    """Require a mask of the shape of every layer."""
    require(isinstance(masks, dict), f"it returned a {type(masks).__name__}, not a dict")
    require(list(masks) == list(view), f"the layers are {list(view)}, the masks {list(masks)}")
    for name, mask in masks.items():
        require(mask.shape == view[name].shape, f"'{name}' has shape {tuple(mask.shape)}")
        require(mask.device == view[name].device, f"'{name}' is on {mask.device}")
        inside = bool(((mask >= 0) & (mask <= 1)).all())
        require(inside, f"'{name}' holds numbers that are not from 0 to 1: {mask.tolist()}")
        hard = soft or bool(((mask == 0) | (mask == 1)).all())
        way_out = "a rounding that returns gates between 0 and 1 sets soft = True, and defines hard"
        require(hard, f"'{name}' holds {mask.tolist()}; {way_out}")


@clause(Rounding, views, on_devices=True)
def the_same_generator_gives_the_same_masks(part: Rounding, case: Rounded) -> None:
    """Masks depend on the scores and on `now` alone: a rounding remembers nothing."""
    with no_global_randomness():
        first = masks_of(*case)
    one, other = (at_global_seed(seed, lambda: masks_of(*case)) for seed in (1, 2))
    equal = same_everywhere(first, one) and same_everywhere(one, other)
    require(equal, "rounding twice gave two results; keep nothing in the part or its module")


@clause(Rounding, views)
def rounding_leaves_the_scores_as_they_were(part: Rounding, case: Rounded) -> None:
    """Rounding changes neither the view nor `now`: what is alive, the gates, the state, the step.

    The state is that of the regularizer.
    """
    part, drawn = case
    view, now = seen(part, drawn), moment(drawn)
    before = {name: value for name, value in vars(now).items() if name != "rng"}
    parts = {"view": view, "alive": now.alive, "gates": now.gates, "state": now.state}
    named = {f"{of} {name}": own for of, group in parts.items() for name, own in group.items()}
    named["step"] = now.step
    with unchanged("its input", lambda: copied(named.items())):
        part.slope(view, part.masks(view, now), now)
        part.hard(view, now)
    other = [name for name, value in before.items() if getattr(now, name) is not value]
    require(not other, f"it put something else in the place of now.{', now.'.join(other)}")


@clause(Rounding, views, on_devices=True, applies=lambda part: part.spends_budget)
def a_rounding_that_spends_the_budget_keeps_just_that(part: Rounding, case: Rounded) -> None:
    """With `spends_budget` every group keeps the count of its share, among what is alive."""
    part, drawn = case
    masks, alive = masks_of(part, drawn), drawn.masks()
    for group, count in shares_of(drawn).items():
        living = {name: masks[name].bool() & alive[name] for name in group}
        require(kept(living) == count, f"{group} keeps {kept(living)} instead of {count}")


@clause(Rounding, views, applies=lambda part: part.spends_budget)
def a_rounding_that_spends_the_budget_keeps_whole_units(part: Rounding, case: Rounded) -> None:
    """With `spends_budget` masks keep to the structure of the recipe, which `now.select` knows."""
    part, drawn = case
    masks = part.masks(seen(part, drawn), moment(drawn, structure=Filters()))
    for name, alive in drawn.masks().items():
        some, living = (Filters().fold(own).sum(-1) for own in (masks[name].bool() & alive, alive))
        whole = bool(((some == 0) | (some == living)).all())
        message = (
            f"of the filters of '{name}', {some.tolist()} of {living.tolist()} weights are kept"
        )
        require(whole, f"{message}; choose with now.select")


def smooth(part: Rounding, device: torch.device) -> st.SearchStrategy[Rounded]:
    """Draw views that lie at no corner of a gate."""
    return st.tuples(variants(part), layers(("drawn",), device))


@clause(Rounding, smooth, applies=lambda part: part.soft)
def the_slope_of_gates_is_their_derivative(part: Rounding, case: Rounded) -> None:
    """Where gates are soft, `slope` is None, or d gate / d view, element by element.

    It is asked for in the step after the one that made the gates.
    """
    part, drawn = case
    view = {name: value.double() for name, value in seen(part, drawn).items()}
    slopes = part.slope(view, part.masks(view, moment(drawn)), moment(drawn, step=6.0))
    if slopes is None:
        return
    width = 1e-6
    up, down = (
        part.masks({name: value + shift for name, value in view.items()}, moment(drawn))
        for shift in (width, -width)
    )
    for name, slope in slopes.items():
        wanted = (up[name] - down[name]) / (2 * width)
        close = torch.isclose(slope, wanted, rtol=1e-3, atol=1e-4).all()
        message = f"'{name}' has slopes {slope.tolist()}, the derivative is {wanted.tolist()}"
        require(bool(close), message)


@clause(Rounding, views, on_devices=True)
def the_slope_is_finite(part: Rounding, case: Rounded) -> None:
    """`slope` is None, or finite, with one number for every score, at 0 and 1 too."""
    part, drawn = case
    view = seen(part, drawn)
    slopes = part.slope(view, masks_of(part, drawn), moment(drawn))
    if slopes is None:
        return
    require(list(slopes) == list(view), f"the layers are {list(view)}, the slopes {list(slopes)}")
    for name, slope in slopes.items():
        require(slope.shape == view[name].shape, f"it has shape {tuple(slope.shape)}")
        require(bool(slope.isfinite().all()), f"it is {slope.tolist()}")
