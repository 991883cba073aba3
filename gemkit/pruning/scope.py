"""Which weights of a network a recipe prunes."""

from torch import nn

from gemkit.core.errors import FitError, some
from gemkit.core.prunable import (
    KINDS,
    ON_REQUEST,
    TRANSPOSED,
    aliases_in,
    frozen_names,
    matches,
    output_name,
    prunable_names,
    weight_names,
)
from gemkit.parts.recipe import Recipe
from gemkit.parts.structure import Structure


def names_in_scope(recipe: Recipe, model: nn.Module, *, frozen: bool = False) -> list[str]:
    """Return the names of the weights that the recipe prunes, in module order.

    These are the weights that its `prunable` selects and that its structure fits.
    """
    scope = recipe.prunable
    kinds = (*KINDS, *scope.kinds)
    known = weight_names(model, frozen=False, kinds=kinds)
    known += weight_names(model, frozen=True, kinds=kinds)
    aliases = aliases_in(model)
    for pattern in (*scope.include, *scope.skip):
        if known and not any(matches(name, [pattern], aliases) for name in known):
            raise FitError(
                f"prunable: {pattern!r} matches no weight of {type(model).__name__}, whose "
                f"prunable weights are {some(known)}; correct it, or leave it out"
            )
    names = prunable_names(
        model, include=scope.include, skip=scope.skip, kinds=scope.kinds, frozen=frozen
    )
    structure = recipe.structure
    fitting = [name for name in names if _fits(structure, model, name)]
    if structure.spares_output:
        output = output_name(model)  # frozen or left out by the recipe, too
        fitting = [name for name in fitting if name != output]
    if not fitting:
        raise FitError(
            f"structure '{recipe.structure.name}' fits no prunable weight of "
            f"{type(model).__name__}: {some(names)}; choose another structure"
        )
    return fitting


def _fits(structure: Structure, model: nn.Module, name: str) -> bool:
    """Whether a structure fits a weight; weights of transposed convolutions start with inputs."""
    layer = model.get_submodule(name.rpartition(".")[0])
    if isinstance(layer, TRANSPOSED) and not structure.plain:
        return False
    return structure.fits(tuple(model.get_parameter(name).shape))


def left_out(
    recipe: Recipe, model: nn.Module, names: list[str], *, frozen: bool = False
) -> str | None:
    """Return a sentence on the prunable weights that the recipe leaves out, or None."""
    known = weight_names(model, frozen=False) + (frozen_names(model) if frozen else [])
    out = [name for name in known if name not in set(names)]
    other = tuple(kind for kind in ON_REQUEST if kind not in recipe.prunable.kinds)
    unasked = weight_names(model, frozen=False, kinds=other)
    found = [
        (out, "not pruned, because of the recipe's prunable or structure: {}"),
        (
            unasked,
            "embeddings and recurrent layers are pruned only if the recipe's prunable.kinds names "
            "'embedding' or 'recurrent'; not pruned: {}",
        ),
    ]
    return "; ".join(words.format(some(own, most=5)) for own, words in found if own) or None
