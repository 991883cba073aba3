"""The contract of pruners: a recipe that resolves, fits and finds a ticket."""

from __future__ import annotations

from typing import NamedTuple

from gemkit.parts.fit import misfits
from gemkit.plugins.registry import Registry
from gemkit.testing.clause import clause, require
from gemkit.testing.clauses.searching import DENSITY, look_at

EPOCHS = 30


class Pruner(NamedTuple):
    """A pruner by name, and the registry of its parts."""

    name: str
    registry: Registry

    def __str__(self) -> str:
        return f"pruner '{self.name}'"


@clause(Pruner)
def its_parts_fit_together(pruner: Pruner, case: None) -> None:
    """The recipe names existing parts and fields, and they fit together in 30 epochs."""
    recipe = pruner.registry.recipe(pruner.name)
    problems = list(misfits(recipe, epochs=EPOCHS, density=DENSITY))
    require(not problems, "; ".join(problems))


@clause(Pruner)
def it_has_one_line_of_help(pruner: Pruner, case: None) -> None:
    """The recipe has one line of help."""
    line = pruner.registry.recipe(pruner.name).help
    require(line.strip() and "\n" not in line, f"it is {line!r}")


@clause(Pruner)
def it_finds_a_ticket(pruner: Pruner, case: None) -> None:
    """A search on a tiny network ends in a ticket within the budget, the same for the same seed."""
    look_at(pruner.registry.recipe(pruner.name), EPOCHS)
