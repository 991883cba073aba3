"""What a run tells its observers: plain values, never tensors, so that listening costs nothing."""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["search", "finetune"]


@dataclass(frozen=True)
class PhaseStarted:
    """A phase is about to take this many steps and to end this many epochs, all rounds together."""

    phase: Phase
    epochs: int
    steps: int


@dataclass(frozen=True)
class StepEnded:
    """One optimizer step is done; `step` counts from 1 within the phase."""

    phase: Phase
    step: int


@dataclass(frozen=True)
class EpochEnded:
    """One epoch is done: training loss, validation accuracy and the density of the mask in use.

    `epoch` counts from 1 within the phase, whatever the clock of a rewound training shows.
    """

    phase: Phase
    epoch: int
    loss: float
    accuracy: float
    density: float
    lr: float
    seconds: float


@dataclass(frozen=True)
class Froze:
    """A freeze happened: the density aimed at, and what is alive and kept after it."""

    step: int
    target: float
    alive: int
    kept: int
    prunable: int


@dataclass(frozen=True)
class Collapsed:
    """Layers lost every weight, or the output no longer depends on the input (`layers` empty)."""

    step: int
    layers: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Noted:
    """Something the user should know before it is too late to change."""

    message: str


Event = PhaseStarted | StepEnded | EpochEnded | Froze | Collapsed | Noted
