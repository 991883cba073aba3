"""The hooks that a plugin can implement.

A plugin is a module that implements some of these hooks, marked with `hookimpl`. It is named by an
entry point of the group `gemkit`, or given as a file. Each hook is called once, when plugins are
loaded, and never during training; what it returns is added to the registry. A name that is already
registered is an error, so no plugin can change the meaning of an existing name.

    from gemkit import hookimpl

    @hookimpl
    def gemkit_scores():
        return [MyScores]
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemkit.plugins.markers import hookspec

if TYPE_CHECKING:
    from gemkit.data.part import DatasetPart
    from gemkit.models.part import ModelPart
    from gemkit.parts.allocation import Allocation
    from gemkit.parts.executor import StudyExecutor
    from gemkit.parts.initializer import Initializer
    from gemkit.parts.objective import Objective
    from gemkit.parts.observer import Observer
    from gemkit.parts.regularizer import Regularizer
    from gemkit.parts.rounding import Rounding
    from gemkit.parts.schedule import FreezeSchedule
    from gemkit.parts.scores import Scores
    from gemkit.parts.structure import Structure
    from gemkit.sanity.check import SanityCheck
    from gemkit.sanity.measurement import Measurement


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
    """Return classes that divide the budget among layers.

    Called once, at load. Each class becomes a choice for the role `allocation` of a recipe.
    """


@hookspec
def gemkit_freeze_schedules() -> list[type[FreezeSchedule]]:
    """Return classes that decide when the density falls, and how far.

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
def gemkit_structures() -> list[type[Structure]]:
    """Return classes that say which weights are pruned together.

    Called once, at load. Each class becomes a choice for the role `structure` of a recipe.
    """


@hookspec
def gemkit_objectives() -> list[type[Objective]]:
    """Return losses.

    Called once, at load. Each class becomes a choice for the role `objective` of a recipe.
    """


@hookspec
def gemkit_sanity_checks() -> list[type[SanityCheck]]:
    """Return sanity checks: controls that a ticket should beat.

    Called once, at load. Each class can be named in `gemkit check` and `gemkit run --check`.
    """


@hookspec
def gemkit_measurements() -> list[type[Measurement]]:
    """Return classes that measure something about a ticket.

    Called once, at load. Each class can then be named in `gemkit check` and `gemkit run --check`,
    beside sanity checks.
    """


@hookspec
def gemkit_models() -> list[type[ModelPart]]:
    """Return classes that build networks.

    Called once, at load. Each class can be named as the model of a run.
    """


@hookspec
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Return classes that load data sets.

    Called once, at load. Nothing is read from disk until a run names the data set.
    """


@hookspec
def gemkit_observers() -> list[type[Observer]]:
    """Return observers of runs, such as loggers and trackers.

    Called once, at load. An observer receives the events of the runs it is named in.
    """


@hookspec
def gemkit_executors() -> list[type[StudyExecutor]]:
    """Return executors: places where the stages of a study run.

    Called once, at load. Each class can be named in `gemkit study --on`. Nothing starts before a
    study has something to run.
    """


@hookspec
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Return named recipes: pruner name -> the part for each role.

    Called once, at load. A recipe is plain data, as in a recipe file:
    `{"help": "one line", "scores": "snip", "schedule": {"name": "exponential", "rounds": 100}}`.
    An omitted role takes its default (`gemkit.parts.recipe.ROLES`). Parts may come from other
    plugins: they are looked up when the pruner is used.
    """


@hookspec
def gemkit_presets() -> dict[str, dict[str, Any]]:
    """Return named runs: preset name -> pruner, model, data set and both plans.

    Called once, at load. A name has the form `my_plugin/my_preset`; its data has the fields of
    `gemkit.presets.preset.Preset`, and `presets_in` there reads it from TOML. Each preset can be
    named in `gemkit run --preset`. Its parts may come from other plugins: they are looked up when
    the preset is used.
    """
