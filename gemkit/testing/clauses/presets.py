"""The contract of presets: everything they name exists and fits together."""

from __future__ import annotations

from typing import NamedTuple

from gemkit.parts.fit import misfits, needs_training
from gemkit.plugins.registry import Registry
from gemkit.testing.clause import clause, require


class NamedPreset(NamedTuple):
    """A preset by name, and the registry of its parts."""

    name: str
    registry: Registry

    def __str__(self) -> str:
        return f"preset '{self.name}'"


@clause(NamedPreset)
def its_run_can_start(named: NamedPreset, case: None) -> None:
    """Pruner, model and data set exist, with the fields it sets, and the recipe fits its plan."""
    registry, preset = named.registry, named.registry.preset(named.name).thing
    recipe = preset.made(registry)
    registry.build("models", preset.model)
    registry.build("datasets", preset.dataset)
    epochs = preset.search.epochs if needs_training(recipe) else 0
    density = recipe.density or preset.density
    problems = list(misfits(recipe, epochs=epochs, density=density))
    require(not problems, "; ".join(problems))
