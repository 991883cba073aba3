"""Layer densities as a value: read off a recipe, and written back into one."""

from collections.abc import Sequence

import torch
from torch import nn

from gemkit.core.errors import FitError
from gemkit.core.tensors import Tensors, parameters_of, total
from gemkit.methods.smart_ratio import Densities
from gemkit.parts.allocation import Allocation
from gemkit.parts.fit import needs_training
from gemkit.parts.recipe import Recipe
from gemkit.pruning.scope import names_in_scope

Ratios = tuple[float, ...]
"""The density of every prunable layer, in module order."""


def layer_densities(recipe: Recipe, model: nn.Module, density: float) -> Ratios:
    """Return what the recipe's allocation gives every layer of a network, all of it alive.

    Layers must have densities of their own before any weight is looked at, so recipes that
    train, and allocations for which layers compete, are refused.
    """
    if needs_training(recipe):
        raise FitError(
            f"pruner '{recipe.pruner}' trains while it searches, but layer densities are tried on "
            "tickets found in one shot; start from one like 'smart_ratio' or 'random'"
        )
    return allocated(recipe.allocation, every_weight(recipe, model), recipe.density or density)


def allocated(allocation: Allocation, alive: Tensors, density: float) -> Ratios:
    """Return the densities an allocation gives to layers, one by one."""
    shares = allocation.keep(alive, alive, density)
    if any(len(group) > 1 for group in shares):
        raise FitError(
            f"allocation '{allocation.name}' lets layers compete, so it has no layer densities to "
            "start from; use one like 'smart_ratio', 'erk' or 'uniform', or copy a ticket's"
        )
    sizes = [mask.numel() for mask in alive.values()]
    return tuple(count / max(1, size) for count, size in zip(shares.values(), sizes, strict=True))


def overall(ratios: Sequence[float], alive: Tensors) -> float:
    """Return the density that layers of these densities add up to."""
    kept = sum(ratio * mask.numel() for ratio, mask in zip(ratios, alive.values(), strict=True))
    return min(1.0, kept / total(alive))


def with_densities(recipe: Recipe, ratios: Sequence[float], alive: Tensors, text: str) -> Recipe:
    """Return the recipe with these layer densities, insisting on the density they add up to."""
    changes = {
        "allocation": Densities(densities=tuple(ratios)),
        "density": overall(ratios, alive),
        "help": text,
    }
    return recipe.model_copy(update=changes)


def every_weight(recipe: Recipe, model: nn.Module) -> Tensors:
    """Return masks in which all weights that a recipe prunes are alive."""
    parameters = parameters_of(model, names_in_scope(recipe, model))
    return {name: torch.ones(weight.shape, dtype=torch.bool) for name, weight in parameters.items()}
