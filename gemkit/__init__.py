"""gemkit: find sparse subnetworks at initialization, with pruners made of interchangeable parts.

Public names are imported on first use, so that `import gemkit` and `gemkit --help` do not import
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemkit.api import evaluate, finetune, search
    from gemkit.compaction import compact
    from gemkit.core.errors import GemkitError, GemkitWarning
    from gemkit.core.probe import Probe, Wanted
    from gemkit.core.prunable import prunable_names
    from gemkit.core.selection import Shares
    from gemkit.core.tensors import Tensors
    from gemkit.data.part import DatasetPart
    from gemkit.data.source import Data
    from gemkit.models.part import ModelPart
    from gemkit.models.prepare import prepare
    from gemkit.models.weights import load_weights
    from gemkit.parts.allocation import Allocation
    from gemkit.parts.executor import StudyExecutor
    from gemkit.parts.initializer import Initializer
    from gemkit.parts.now import Now
    from gemkit.parts.objective import Objective
    from gemkit.parts.observer import Observer
    from gemkit.parts.part import Part
    from gemkit.parts.recipe import Recipe, Rewind, Scope
    from gemkit.parts.regularizer import Regularizer
    from gemkit.parts.rounding import Rounding
    from gemkit.parts.schedule import Freeze, FreezeSchedule
    from gemkit.parts.scores import LearnedScores, MeasuredScores, Scores
    from gemkit.parts.structure import Structure
    from gemkit.plugins.loader import load_plugins
    from gemkit.plugins.markers import hookimpl
    from gemkit.plugins.registry import Registry
    from gemkit.ranking import importance, select
    from gemkit.runs.config import RunConfig, RunSettings
    from gemkit.runs.progress import Progress
    from gemkit.runs.read_config import load_config
    from gemkit.runs.result import RunResult
    from gemkit.runs.run import load_preset, resume, run
    from gemkit.sanity.check import SanityCheck
    from gemkit.sanity.measurement import Measurement
    from gemkit.study.study import Study
    from gemkit.tickets.hold import Hold
    from gemkit.tickets.ticket import Ticket
    from gemkit.training.plan import Plan, Runtime

_HOMES = {
    "gemkit.api": (
        "evaluate",
        "finetune",
        "search",
    ),
    "gemkit.compaction": ("compact",),
    "gemkit.core.errors": (
        "GemkitError",
        "GemkitWarning",
    ),
    "gemkit.core.prunable": ("prunable_names",),
    "gemkit.core.probe": (
        "Probe",
        "Wanted",
    ),
    "gemkit.core.selection": ("Shares",),
    "gemkit.core.tensors": ("Tensors",),
    "gemkit.data.part": ("DatasetPart",),
    "gemkit.data.source": ("Data",),
    "gemkit.models.part": ("ModelPart",),
    "gemkit.models.weights": ("load_weights",),
    "gemkit.parts.allocation": ("Allocation",),
    "gemkit.parts.executor": ("StudyExecutor",),
    "gemkit.parts.initializer": ("Initializer",),
    "gemkit.parts.now": ("Now",),
    "gemkit.parts.objective": ("Objective",),
    "gemkit.parts.observer": ("Observer",),
    "gemkit.parts.part": ("Part",),
    "gemkit.parts.recipe": (
        "Recipe",
        "Rewind",
        "Scope",
    ),
    "gemkit.parts.regularizer": ("Regularizer",),
    "gemkit.parts.rounding": ("Rounding",),
    "gemkit.parts.schedule": (
        "Freeze",
        "FreezeSchedule",
    ),
    "gemkit.parts.scores": (
        "LearnedScores",
        "MeasuredScores",
        "Scores",
    ),
    "gemkit.parts.structure": ("Structure",),
    "gemkit.plugins.loader": ("load_plugins",),
    "gemkit.plugins.markers": ("hookimpl",),
    "gemkit.plugins.registry": ("Registry",),
    "gemkit.models.prepare": ("prepare",),
    "gemkit.ranking": (
        "importance",
        "select",
    ),
    "gemkit.runs.config": (
        "RunConfig",
        "RunSettings",
    ),
    "gemkit.runs.progress": ("Progress",),
    "gemkit.runs.read_config": ("load_config",),
    "gemkit.runs.result": ("RunResult",),
    "gemkit.runs.run": (
        "load_preset",
        "resume",
        "run",
    ),
    "gemkit.sanity.check": ("SanityCheck",),
    "gemkit.sanity.measurement": ("Measurement",),
    "gemkit.study.study": ("Study",),
    "gemkit.tickets.hold": ("Hold",),
    "gemkit.tickets.ticket": ("Ticket",),
    "gemkit.training.plan": (
        "Plan",
        "Runtime",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Allocation",
    "Data",
    "DatasetPart",
    "Freeze",
    "FreezeSchedule",
    "GemkitError",
    "GemkitWarning",
    "Hold",
    "Initializer",
    "LearnedScores",
    "MeasuredScores",
    "Measurement",
    "ModelPart",
    "Now",
    "Objective",
    "Observer",
    "Part",
    "Plan",
    "Probe",
    "Progress",
    "Recipe",
    "Registry",
    "Regularizer",
    "Rewind",
    "Rounding",
    "RunConfig",
    "RunResult",
    "RunSettings",
    "Runtime",
    "SanityCheck",
    "Scope",
    "Scores",
    "Shares",
    "Structure",
    "Study",
    "StudyExecutor",
    "Tensors",
    "Ticket",
    "Wanted",
    "compact",
    "evaluate",
    "finetune",
    "hookimpl",
    "importance",
    "load_config",
    "load_plugins",
    "load_preset",
    "load_weights",
    "prepare",
    "prunable_names",
    "resume",
    "run",
    "search",
    "select",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name == "__version__":
        from importlib.metadata import version

        return version("gemkit")
    if name not in _HOME:
        raise AttributeError(f"module 'gemkit' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
