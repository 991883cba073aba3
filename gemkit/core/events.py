"""The events that a run sends to its observers: plain values, and a view of the network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from gemkit.core.tensors import Tensors

Phase = Literal["search", "finetune"]


@dataclass(frozen=True)
class View:
    """Access to the network of a phase, while the phase lasts."""

    masks: Callable[[], Tensors]
    """Returns a copy of the current mask."""
    scores: Callable[[], Tensors]
    """Returns a copy of the learned scores; empty if only weights are trained."""
    stop: Callable[[str], None]
    """Ends training after the current step, for a reason; the remaining freezes still happen."""


@dataclass(frozen=True)
class PhaseStarted:
    """A phase begins; `epochs` and `steps` count all of its rounds together."""

    phase: Phase
    epochs: int
    steps: int
    view: View | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class StepEnded:
    """An optimizer step is done; `step` counts from 1 within the phase."""

    phase: Phase
    step: int


@dataclass(frozen=True)
class EpochEnded:
    """An epoch is done: training loss, validation metric and the density of the current mask.

    `epoch` counts from 1 within the phase; rewinding does not reset it. `value` is that of the
    run's metric, and also called `accuracy` if that is the metric. `strength` is the λ of the
    penalty on learned scores, if there is one.
    """

    phase: Phase
    epoch: int
    loss: float
    value: float
    density: float
    lr: float
    seconds: float
    metric: str = "accuracy"
    higher_is_better: bool = True
    strength: float | None = None

    @property
    def accuracy(self) -> float:
        """The validation accuracy, if that is the metric of the run."""
        if self.metric != "accuracy":
            raise AttributeError(f"this run measures '{self.metric}', not accuracy; read `value`")
        return self.value


@dataclass(frozen=True)
class Scoring:
    """Scores are being measured, for number `freeze` of `freezes`, counted from 1.

    `passes` counts the forward passes that have begun. There are `batches` of data, which some
    scores pass through the network several times, and others not at all.
    """

    freeze: int
    freezes: int
    passes: int
    batches: int


@dataclass(frozen=True)
class Froze:
    """A freeze is done: its target density, and the weights alive and kept after it."""

    step: int
    target: float
    alive: int
    kept: int
    prunable: int


@dataclass(frozen=True)
class Collapsed:
    """Layers lost every weight, or (`layers` is empty) no signal reaches the output."""

    step: int
    layers: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Noted:
    """A warning to the user."""

    message: str


Event = PhaseStarted | StepEnded | EpochEnded | Scoring | Froze | Collapsed | Noted
"""Every event that an observer receives."""
