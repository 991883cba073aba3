"""Freeze schedules: when the density falls, and how far."""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

from gemkit.parts.part import Part


class Freeze(NamedTuple):
    """One freeze: at this step of the clock, the density falls to this value."""

    step: int
    """Optimizer steps before it."""
    density: float
    """The fraction of the prunable weights that stays."""
    regrow: float = 0.0
    """The share of the living weights that is dropped, so that as many others return."""


class FreezeSchedule(Part):
    """When the density falls, and how far each time."""

    needs_clock_rewound: ClassVar[bool] = False
    """Whether all freezes are at one step, which the clock reaches again after every rewinding."""

    @property
    def round_epochs(self) -> int | None:
        """The epochs of one round, if the schedule and not the plan sets them."""
        return None

    @property
    @abstractmethod
    def trains(self) -> bool:
        """Whether freezes happen during training, rather than all before the first step."""

    @abstractmethod
    def freezes(self, target: float, epochs: int, steps_per_epoch: int) -> list[Freeze]:
        """List every freeze: steps ascending, densities never rising, the last one the target."""
