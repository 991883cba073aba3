"""What a search refuses before anything is trained or written."""

from typing import get_args

import torch
from torch import nn

from gemkit.core.errors import FitError, OptionError, did_you_mean, some
from gemkit.core.selection import Shares
from gemkit.core.tensors import Tensors, budget, parameters_of, total
from gemkit.core.text import number_of
from gemkit.parts.recipe import Recipe
from gemkit.pruning.scope import names_in_scope
from gemkit.training.plan import CollapsePolicy
from gemkit.training.task import Task


def check_objective(recipe: Recipe, task: Task) -> None:
    """Refuse a recipe whose own objective does not suit the targets of the task."""
    own, targets = recipe.objective, task.objective.targets
    if own is not None and own.targets not in ("any", targets) and targets != "any":
        raise FitError(
            f"pruner '{recipe.pruner}': its search minimizes '{own.name}', which is for "
            f"{own.targets}, but the targets of objective '{task.objective.name}' are {targets}; "
            "choose another pruner, or leave the recipe's objective out"
        )


def check_network(
    recipe: Recipe, model: nn.Module, *, density: float, on_collapse: CollapsePolicy
) -> None:
    """Refuse a search that cannot find a ticket of this density in this network."""
    parameters = parameters_of(model, names_in_scope(recipe, model))
    weights = {name: weight.detach() for name, weight in parameters.items()}
    alive = {name: torch.ones_like(own, dtype=torch.bool) for name, own in weights.items()}
    check_shares(recipe, weights, alive, density, on_collapse)


def check_shares(
    recipe: Recipe, weights: Tensors, alive: Tensors, density: float, on_collapse: CollapsePolicy
) -> None:
    """Refuse a policy, a density or an allocation that does not suit the recipe and the layers."""
    check_policy(recipe, on_collapse)
    if budget(total(alive), density) == 0:
        raise FitError(
            f"density {density:g} keeps none of {total(alive):,} prunable weights; it must be "
            f"at least {0.5 / total(alive):.2g}"
        )
    shares = recipe.allocation.keep(weights, alive, density)  # or it refuses
    recipe.structure.check(alive, shares, density)
    if on_collapse == "error":
        _check_units(recipe, alive, shares, density)


def check_policy(recipe: Recipe, on_collapse: CollapsePolicy) -> None:
    """Refuse a policy that does not exist, or that the recipe cannot follow."""
    if on_collapse not in get_args(CollapsePolicy):
        policies = get_args(CollapsePolicy)
        raise OptionError(f"on_collapse = '{on_collapse}'{did_you_mean(on_collapse, policies)}")
    if on_collapse == "keep-one" and not recipe.structure.plain:
        raise OptionError(
            "on_collapse = 'keep-one' keeps single weights, which structure "
            f"'{recipe.structure.name}' does not; use 'error' or 'warn'"
        )
    if on_collapse == "keep-one" and recipe.grow is not None:
        raise OptionError(
            "on_collapse = 'keep-one' does not suit a recipe in which weights return; use "
            "'error' or 'warn'"
        )


def _check_units(recipe: Recipe, alive: Tensors, shares: Shares, density: float) -> None:
    """Refuse a share smaller than every unit: its layers would lose every weight."""
    fold = recipe.structure.fold
    for group, count in shares.items():
        sizes = [fold(alive[name]).shape[2] for name in group if alive[name].numel()]
        if sizes and count < min(sizes) > 1:
            other = "" if len(group) > 1 else ", choose allocation 'global' or 'erk'"
            raise FitError(
                f"density {density:g} leaves {number_of(count, 'weight')} to {some(list(group))}, "
                f"fewer than the {min(sizes)} of one unit of structure '{recipe.structure.name}'; "
                f"raise the density{other}, or continue without them: on_collapse = 'warn' "
                "(--on-collapse warn)"
            )
