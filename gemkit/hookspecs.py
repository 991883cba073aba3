"""The doors: what a plugin may hand to gemkit.

A plugin is any module that implements some of these hooks, marked with `hookimpl`, and that an
entry point of the group `gemkit` names (or that is given as a file). Each hook is called once,
when plugins are loaded, and never while a network trains; what it returns is added to the
registry, next to what others returned. A name that is already taken is an error, so no plugin can
change what another one, or gemkit itself, means by a name.

    from gemkit.hookspecs import hookimpl

    @hookimpl
    def gemkit_scores():
        return [MyScores]
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from gemkit.parts import (
        Allocation,
        DatasetPart,
        FreezeSchedule,
        Initializer,
        ModelPart,
        Observer,
        Regularizer,
        Rounding,
        SanityCheck,
        Scores,
    )

hookspec = pluggy.HookspecMarker("gemkit")
hookimpl = pluggy.HookimplMarker("gemkit")


@hookspec
def gemkit_scores() -> list[type[Scores]]:
    """Return score classes, learned or measured.

    Called once, at load. Each class becomes a choice for the role `scores` of a recipe.
    """


@hookspec
def gemkit_roundings() -> list[type[Rounding]]:
    """Return classes that turn learned scores into masks.

    Called once, at load. Each class becomes a choice for the role `rounding` of a recipe.
    """


@hookspec
def gemkit_allocations() -> list[type[Allocation]]:
    """Return classes that share the budget over layers.

    Called once, at load. Each class becomes a choice for the role `allocation` of a recipe.
    """


@hookspec
def gemkit_freeze_schedules() -> list[type[FreezeSchedule]]:
    """Return classes that say when the density falls, and how far.

    Called once, at load. Each class becomes a choice for the role `schedule` of a recipe.
    """


@hookspec
def gemkit_regularizers() -> list[type[Regularizer]]:
    """Return penalties on learned scores.

    Called once, at load. Each class becomes a choice for the role `regularizer` of a recipe.
    """


@hookspec
def gemkit_initializers() -> list[type[Initializer]]:
    """Return classes that draw the starting weights.

    Called once, at load. Each class becomes a choice for the role `init` of a recipe.
    """


@hookspec
def gemkit_sanity_checks() -> list[type[SanityCheck]]:
    """Return controls that a ticket should beat.

    Called once, at load. Each class can then be named in `gemkit check` and `gemkit run --check`.
    """


@hookspec
def gemkit_models() -> list[type[ModelPart]]:
    """Return networks that can be built by name.

    Called once, at load. Each class can then be named as the model of a run.
    """


@hookspec
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Return data sets that can be loaded by name.

    Called once, at load; nothing is read from disk until a run names the data set.
    """


@hookspec
def gemkit_observers() -> list[type[Observer]]:
    """Return listeners to runs, such as loggers and trackers.

    Called once, at load. An observer hears only the runs it is named in.
    """


@hookspec
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Return named recipes: pruner name -> which part plays each role.

    Called once, at load. Each recipe is plain data of the same shape as a recipe file:
    `{"help": "one line", "scores": "snip", "schedule": {"name": "exponential", "rounds": 100}}`.
    A role that is left out takes its default (`gemkit.recipe.ROLES`). The parts may come from
    other plugins: they are looked up when the pruner is used.
    """


@hookspec
def gemkit_presets() -> dict[str, dict[str, Any]]:
    """Return named runs: preset name -> pruner, network, images and both plans.

    Called once, at load. The name has two words, `my_plugin/my_preset`; the data is what
    `gemkit.preset.Preset` describes, and `gemkit.preset.presets_in` reads it from a TOML file. Each
    preset can then be named in `gemkit run --preset`. Its parts may come from other plugins: they
    are looked up when the preset is used.
    """
