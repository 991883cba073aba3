"""The contract of whatever plays a role: a search with it ends in a ticket, the same every time."""

from __future__ import annotations

from functools import cache
from typing import Any

from gemkit.engine import search
from gemkit.parts import (
    Allocation,
    FreezeSchedule,
    Initializer,
    LearnedScores,
    Part,
    Regularizer,
    Rounding,
    Scores,
)
from gemkit.plan import Plan
from gemkit.plugins import load_plugins
from gemkit.recipe import ROLES, Recipe
from gemkit.registry import Registry
from gemkit.tensors import budget
from gemkit.testing.clause import clause, require
from gemkit.testing.tiny import CPU, tiny_data, tiny_net
from gemkit.testing.watch import state_of, unchanged
from gemkit.ticket import Ticket

DENSITY = 0.5
_POPUP = {"scores": "popup", "rounding": "topk", "init": "signed_constant"}
_UNIFORM = _POPUP | {"scores": "uniform"}


@cache
def own_parts() -> Registry:
    """Load gemkit's own parts."""
    return load_plugins(only=())


def partners_of(part: Part) -> dict[str, Any]:
    """Choose built-in parts that go with this one; roles left out take their defaults."""
    if isinstance(part, Rounding) and not part.takes_measured:
        return _UNIFORM if part.needs_unit_interval else _POPUP
    if isinstance(part, FreezeSchedule) and part.needs_clock_rewound:
        return {"rewind": {"weights": 0.0, "clock": 0.0}}
    return _POPUP if isinstance(part, LearnedScores | Regularizer) else {}


def recipe_with(part: Part) -> Recipe:
    """Make a recipe in which the part plays its role."""
    recipe = own_parts().recipe({"pruner": "contract", **partners_of(part)})
    [role] = [role for role, (kind, _) in ROLES.items() if isinstance(part, kind)]
    return recipe.model_copy(update={role: part})


def tried(recipe: Recipe, epochs: int) -> Ticket:
    """Search with a recipe in a tiny network, and look whether that is left as it was."""
    model, data = tiny_net(), tiny_data()
    with unchanged("the model of the caller", lambda: state_of(model)):
        return search(
            recipe,
            model,
            data,
            density=DENSITY,
            # A part may meet a network or partners that do not suit it; the promise holds anyway.
            plan=Plan(epochs=epochs, batch_size=16, on_no_signal="warn", allow_ties=True),
            runtime=CPU,
            on_collapse="warn",
        )


def look_at(recipe: Recipe, epochs: int) -> None:
    """Search twice, and hold the two tickets against the density and each other."""
    ticket, again = tried(recipe, epochs), tried(recipe, epochs)
    goal = budget(ticket.prunable, recipe.density or DENSITY)
    rounded = recipe.finalize == "rounded" and not recipe.rounding.spends_budget
    thins_out = rounded and not recipe.rounding.takes_measured
    fits = ticket.kept <= goal if thins_out else ticket.kept == goal
    require(fits, f"the ticket keeps {ticket.kept} weights, and the budget is {goal}")
    require(ticket.digest() == again.digest(), "two searches with one seed found two tickets")


@clause(Scores)
def it_prunes_in_a_search(part: Scores, case: None) -> None:
    """A search with these scores finds a ticket within the budget, the same for the same seed."""
    look_at(recipe_with(part), epochs=3)


@clause(Rounding)
def it_rounds_in_a_search(part: Rounding, case: None) -> None:
    """A search with this rounding finds a ticket within the budget, the same for the same seed."""
    look_at(recipe_with(part), epochs=3)


@clause(Allocation)
def it_shares_in_a_search(part: Allocation, case: None) -> None:
    """A search with this allocation finds a ticket of the budget, the same for the same seed."""
    look_at(recipe_with(part), epochs=0)


@clause(FreezeSchedule)
def it_freezes_in_a_search(part: FreezeSchedule, case: None) -> None:
    """A search with this schedule finds a ticket of the budget, the same for the same seed."""
    look_at(recipe_with(part), epochs=30)


@clause(Regularizer)
def it_pulls_in_a_search(part: Regularizer, case: None) -> None:
    """A search with this regularizer finds a ticket of the budget, the same for the same seed."""
    look_at(recipe_with(part), epochs=3)


@clause(Initializer)
def it_begins_a_search(part: Initializer, case: None) -> None:
    """A search from these weights finds a ticket of the budget, the same for the same seed."""
    look_at(recipe_with(part), epochs=0)
