"""gemkit: sparse subnetworks at initialization, every pruner a choice of interchangeable parts.

Names are loaded when first used, so that `import gemkit` (and with it `gemkit --help`) does not
wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemkit.api import importance, search, select
    from gemkit.compaction import compact, finetune
    from gemkit.data.source import Data
    from gemkit.engine import evaluate
    from gemkit.errors import GemkitError
    from gemkit.hookspecs import hookimpl
    from gemkit.parts import (
        Allocation,
        DatasetPart,
        Freeze,
        FreezeSchedule,
        Initializer,
        LearnedScores,
        MeasuredScores,
        ModelPart,
        Observer,
        Part,
        Regularizer,
        Rounding,
        SanityCheck,
        Scores,
    )
    from gemkit.plan import Plan, Runtime
    from gemkit.plugins import load_plugins
    from gemkit.probe import Probe, Wanted
    from gemkit.readiness import prepare
    from gemkit.recipe import Recipe, Rewind
    from gemkit.registry import Registry
    from gemkit.runs.config import RunConfig, RunSettings, load_config
    from gemkit.runs.progress import Progress
    from gemkit.runs.result import RunResult
    from gemkit.runs.run import load_preset, resume, run
    from gemkit.selection import Shares
    from gemkit.tensors import Tensors, prunable_names
    from gemkit.ticket import Ticket

_HOMES = {
    "gemkit.api": ("importance", "search", "select"),
    "gemkit.compaction": ("compact", "finetune"),
    "gemkit.data.source": ("Data",),
    "gemkit.engine": ("evaluate",),
    "gemkit.errors": ("GemkitError",),
    "gemkit.hookspecs": ("hookimpl",),
    "gemkit.parts": (
        "Allocation",
        "DatasetPart",
        "Freeze",
        "FreezeSchedule",
        "Initializer",
        "LearnedScores",
        "MeasuredScores",
        "ModelPart",
        "Observer",
        "Part",
        "Regularizer",
        "Rounding",
        "SanityCheck",
        "Scores",
    ),
    "gemkit.plan": ("Plan", "Runtime"),
    "gemkit.plugins": ("load_plugins",),
    "gemkit.readiness": ("prepare",),
    "gemkit.probe": ("Probe", "Wanted"),
    "gemkit.recipe": ("Recipe", "Rewind"),
    "gemkit.registry": ("Registry",),
    "gemkit.runs.config": ("RunConfig", "RunSettings", "load_config"),
    "gemkit.runs.progress": ("Progress",),
    "gemkit.runs.result": ("RunResult",),
    "gemkit.runs.run": ("load_preset", "resume", "run"),
    "gemkit.selection": ("Shares",),
    "gemkit.tensors": ("Tensors", "prunable_names"),
    "gemkit.ticket": ("Ticket",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Allocation",
    "Data",
    "DatasetPart",
    "Freeze",
    "FreezeSchedule",
    "GemkitError",
    "Initializer",
    "LearnedScores",
    "MeasuredScores",
    "ModelPart",
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
    "Scores",
    "Shares",
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
