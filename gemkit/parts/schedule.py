"""Freeze schedules: when the density falls, and how far."""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

from gemkit.parts.part import Part


class Freeze(NamedTuple):
    """When the clock shows this optimizer step, the density falls to this one."""

    step: int
    """Optimizer steps before it."""
    density: float
    """The fraction of the prunable weights that stays."""
    regrow: float = 0.0
    """The share of the living weights that is dropped, for as many others to return."""


class FreezeSchedule(Part):
    """When the density falls, and how far each time."""

    needs_clock_rewound: ClassVar[bool] = False
    """Whether its freezes wait for the same moment, which comes again when the clock goes back."""

    @property
    def round_epochs(self) -> int | None:
        """How long one run of the clock takes, where the schedule and not the plan decides."""
        return None

    @property
    @abstractmethod
    def trains(self) -> bool:
        """Whether its freezes are spread over training, rather than all before the first step."""

    @abstractmethod
    def freezes(self, target: float, epochs: int, steps_per_epoch: int) -> list[Freeze]:
        """List every freeze: steps ascending, densities never rising, the last one the target."""
