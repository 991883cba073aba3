"""The contract of every role: a search with the part ends in a ticket, the same every time."""

from __future__ import annotations

from functools import cache
from typing import Any

from lightning_fabric import Fabric
from torch import nn

from gemkit.core.errors import FitError
from gemkit.core.tensors import budget
from gemkit.data.source import Data
from gemkit.parts.allocation import Allocation
from gemkit.parts.fit import regrows
from gemkit.parts.initializer import Initializer
from gemkit.parts.objective import Objective
from gemkit.parts.part import Part
from gemkit.parts.recipe import ROLES, Recipe
from gemkit.parts.regularizer import Regularizer
from gemkit.parts.rounding import Rounding
from gemkit.parts.schedule import FreezeSchedule
from gemkit.parts.scores import LearnedScores, Scores
from gemkit.parts.structure import Structure
from gemkit.pruning.finetune import finetune
from gemkit.pruning.search import search
from gemkit.testing.clause import NotTriedError, clause, require
from gemkit.testing.clauses.state import fresh, held
from gemkit.testing.fields import inner_parts, is_part, own_parts
from gemkit.testing.tiny import CPU, one_layer, tiny_data, tiny_net
from gemkit.testing.watch import state_of, unchanged
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpointer import Checkpointer
from gemkit.training.plan import Plan
from gemkit.training.task import Task, task_from

DENSITY = 0.5
_POPUP = {"scores": "popup", "rounding": "topk", "init": "signed_constant"}
_UNIFORM = _POPUP | {"scores": "uniform"}
_AT_THE_END = {"schedule": {"name": "once", "after": 1.0}}
_WEIGHTS = {"scores": "magnitude", "rounding": "open", "init": "as_built"} | _AT_THE_END
_OBJECTIVES = {"values": "mse", "labels": "binary"}
_DENSITIES = (DENSITY, *(n / m for m in (4, 8, 16, 3, 5, 6, 10, 32) for n in range(1, m)))
_GATES = {"scores": "constant", "rounding": "sigmoid"} | _AT_THE_END


def partners_of(part: Part) -> dict[str, Any]:
    """Choose built-in parts that go with this one; roles left out take their defaults."""
    if isinstance(part, Rounding) and not part.takes_measured:
        return _UNIFORM if part.needs_unit_interval else _POPUP
    if isinstance(part, FreezeSchedule):
        grow = {"grow": "random"} if regrows(part.freezes(DENSITY, 30, 2)) else {}
        rewind = {"rewind": {"weights": 0.0, "clock": 0.0}} if part.needs_clock_rewound else {}
        return rewind | grow
    if isinstance(part, Regularizer) and part.steers_density and part.on == "scores":
        return _UNIFORM | {"rounding": "threshold"}
    if isinstance(part, Regularizer) and part.on == "gates":
        return _GATES
    if isinstance(part, Structure):
        return {"allocation": "uniform"}
    return _POPUP if isinstance(part, LearnedScores | Regularizer | Objective) else {}


def recipe_with(part: Part, **others: object) -> Recipe:
    """Make a recipe in which the part, made again of its fields, plays its role."""
    recipe = own_parts().recipe({"pruner": "contract", **partners_of(part), **others})
    role = next(role for role, (kind, _) in ROLES.items() if isinstance(part, kind))
    return recipe.model_copy(update={role: fresh(part)})


@cache
def processor() -> Fabric:
    """Open the CPU once."""
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    return fabric


def tried(
    recipe: Recipe,
    epochs: int,
    *,
    density: float = DENSITY,
    model: nn.Module | None = None,
    checkpointer: Checkpointer | None = None,
) -> Ticket:
    """Search with a recipe in a tiny network, and look whether that is left as it was."""
    model = tiny_net() if model is None else model
    data, task = data_and_task(recipe.objective)
    network = unchanged("the model of the caller", lambda: state_of(model))
    with network, unchanged("what the parts hold", lambda: held(recipe)):
        return search(
            recipe,
            model,
            data,
            density=density,
            # A part may meet a network or partners that do not suit it; the promise holds anyway.
            plan=Plan(epochs=epochs, batch_size=16, on_no_signal="warn", allow_ties=True),
            runtime=CPU,
            fabric=processor(),
            on_collapse="warn",
            checkpointer=checkpointer,
            task=task,
        )


def data_and_task(objective: Objective | None) -> tuple[Data, Task]:
    """Return tiny data with targets for an objective, and a task for them."""
    kind = "classes" if objective is None else objective.targets
    if objective is None or kind in ("classes", "any"):
        return tiny_data(), Task()
    if objective.needs_dense:  # which a task never does
        return tiny_data(targets=kind), task_from(own_parts(), _OBJECTIVES[kind])
    return tiny_data(targets=kind), Task(objective)


def look_at(recipe: Recipe, epochs: int) -> Ticket:
    """Search twice, and hold the two tickets against the density and each other."""
    ticket, again = tried(recipe, epochs), tried(recipe, epochs)
    goal = budget(ticket.prunable, recipe.density or DENSITY)
    rounded = recipe.finalize == "rounded" and not recipe.rounding.spends_budget
    thins_out = rounded and not recipe.rounding.takes_measured
    at_most = thins_out or recipe.structure.name != "weights"
    fits = ticket.kept <= goal if at_most else ticket.kept == goal
    require(fits, f"the ticket keeps {ticket.kept} weights, and the budget is {goal}")
    require(ticket.digest() == again.digest(), "two searches with one seed found two tickets")
    return ticket


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


@clause(Objective)
def it_trains_in_a_search(part: Objective, case: None) -> None:
    """Scores, and weights, that are trained with it give a ticket that can be fine-tuned."""
    recipes = [recipe_with(part)]
    if not part.needs_dense:  # which must not change
        recipes.append(recipe_with(part, **_WEIGHTS))
    for recipe in recipes:
        ticket = look_at(recipe, epochs=3)
        data, task = data_and_task(part)
        fabric = processor()
        finetune(ticket, tiny_net(), data, epochs=1, runtime=CPU, fabric=fabric, task=task)


@clause(Structure)
def it_prunes_whole_units_in_a_search(part: Structure, case: None) -> None:
    """A search with this structure finds a ticket within the budget, of whole units alone."""
    recipe = recipe_with(part)
    fitting = next((density for density in _DENSITIES if part.misfit(density) is None), None)
    if fitting is None:
        raise NotTriedError(f"it takes none of many densities: {part.misfit(DENSITY)}")
    ticket = in_some_network(recipe, fitting)
    require(ticket.kept > 0, "the ticket keeps nothing")
    goal = budget(ticket.prunable, fitting)
    require(ticket.kept <= goal, f"it keeps {ticket.kept} weights, and the budget is {goal}")
    for name, mask in ticket.mask.items():
        units = part.fold(mask)
        whole = bool((units.any(-1) == units.all(-1)).all())
        require(whole, f"'{name}' keeps a part of a unit")


def in_some_network(recipe: Recipe, density: float) -> Ticket:
    """Search in the first network that has layers for the structure."""
    networks = [tiny_net(width=width) for width in (8, 6, 12, 32)]
    reason = ""
    for model in [*networks, one_layer()]:
        try:
            return tried(recipe, 0, density=density, model=model)
        except FitError as error:
            reason = str(error)
    raise NotTriedError(f"it suits none of the networks it was tried with: {reason}")


def holds_parts(part: Part) -> bool:
    """Whether a part has a field for another one."""
    return any(is_part(info.annotation) for info in type(part).model_fields.values())


@clause(Part, applies=holds_parts)
def other_parts_may_be_within_it(part: Part, case: None) -> None:
    """A search with it ends in a ticket, whatever built-in parts its fields hold."""
    for name, info in type(part).model_fields.items():
        if is_part(info.annotation):
            kind: Any = info.annotation
            for inner in inner_parts(kind):
                look_at(recipe_with(part.model_copy(update={name: inner})), epochs=3)
