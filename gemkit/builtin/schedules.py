"""Freeze schedules: when the density falls, and along which curve."""

import math
from abc import abstractmethod
from fractions import Fraction
from typing import ClassVar, Literal

from pydantic import Field

from gemkit.core.errors import FitError
from gemkit.core.limits import MAX_EPOCHS, MAX_FREEZES, MAX_ROUNDS
from gemkit.core.tensors import budget
from gemkit.core.text import number_of
from gemkit.parts.schedule import Freeze, FreezeSchedule
from gemkit.plugins.markers import hookimpl

_TRIES = 300
"""How many numbers of epochs are tried for a message."""


class Once(FreezeSchedule):
    """One freeze straight to the target: before training, or after a part of it."""

    name = "once"

    after: float = Field(default=0.0, ge=0, le=1, description="fraction of the epochs before it")

    @property
    def trains(self) -> bool:
        """Whether any training comes before the freeze."""
        return self.after > 0

    def freezes(self, target: float, epochs: int, steps_per_epoch: int) -> list[Freeze]:
        """Freeze at the end of the nearest epoch, half-up; of the first at the earliest.

        With `after` = 0, freeze before training.
        """
        epoch = max(1, budget(epochs, self.after)) if self.after > 0 and epochs > 0 else 0
        return [Freeze(epoch * steps_per_epoch, target)]


class Constant(FreezeSchedule):
    """The target density from the first step to the last, as Edge-Popup uses it."""

    name = "constant"

    @property
    def trains(self) -> bool:
        """Nothing happens later than the first step."""
        return False

    def freezes(self, target: float, epochs: int, steps_per_epoch: int) -> list[Freeze]:
        """Set the density before the first step."""
        return [Freeze(0, target)]


class SteppedSchedule(FreezeSchedule):
    """A curve from density 1 to the target, followed in freezes every few epochs."""

    of_training: ClassVar[tuple[str, ...]] = ("every",)
    """The fields that say when to freeze in training, and nothing else; subclasses add theirs."""

    every: int = Field(
        default=2, ge=1, le=MAX_EPOCHS, description="epochs from one freeze to the next (T)"
    )
    rounds: int | None = Field(
        default=None,
        ge=1,
        le=MAX_FREEZES,
        description="instead of freezes in training: so many in a row before it",
    )

    @property
    def trains(self) -> bool:
        """Whether epochs pass between freezes."""
        return self.rounds is None

    @abstractmethod
    def curve(self, progress: float, target: float) -> float:
        """Return the density at `progress`, which rises to 1 at the last freeze."""

    @abstractmethod
    def moments(self, epochs: int) -> list[int]:
        """List after how many epochs to freeze."""

    def freezes(self, target: float, epochs: int, steps_per_epoch: int) -> list[Freeze]:
        """Walk down the curve, ending at the target exactly."""
        self._refuse_contradictions()
        moments = [0] * self.rounds if self.rounds else self.moments(epochs)
        if not moments:
            raise FitError(
                f"schedule '{self.name}' finds no moment to freeze: the search has "
                f"{number_of(epochs, 'epoch')} and schedule.every is {self.every}; "
                f"{self._longer(epochs)}, lower schedule.every, or set schedule.rounds to freeze "
                "before training"
            )
        if len(moments) > MAX_FREEZES:
            raise FitError(
                f"schedule '{self.name}' would freeze {len(moments):,} times, at most "
                f"{MAX_FREEZES:,} are recorded; raise schedule.every"
            )
        progress = [(count + 1) / len(moments) for count in range(len(moments))]
        densities = [self.curve(part, target) for part in progress[:-1]] + [target]
        return [
            Freeze(epoch * steps_per_epoch, density)
            for epoch, density in zip(moments, densities, strict=True)
        ]

    @property
    def shortest(self) -> int:
        """A lower bound of the epochs in which there is a moment to freeze."""
        return 1

    def _longer(self, epochs: int) -> str:
        """Say how many epochs it takes, if so many are found among the next few hundred."""
        first = max(self.shortest, epochs + 1)
        tried = range(first, min(first + _TRIES, MAX_EPOCHS + 1))
        least = next((count for count in tried if self.moments(count)), None)
        return (
            "train longer" if least is None else f"train for {number_of(least, 'epoch')} at least"
        )

    def _refuse_contradictions(self) -> None:
        """Refuse fields that would have no effect, because `rounds` comes before all training."""
        fields = type(self).model_fields
        idle = [
            f"schedule.{name}={getattr(self, name)}"
            for name in self.of_training
            if getattr(self, name) != fields[name].default
        ]
        if self.rounds is not None and idle:
            raise FitError(
                f"schedule.rounds={self.rounds} freezes before any training, where "
                f"{' and '.join(idle)} would have no effect; leave out one or the other"
            )


class Exponential(SteppedSchedule):
    """The same fraction of survivors goes at every freeze: density = target^progress.

    `timing="authors"` is what the paper's code does: n = ⌊(E−1)/T⌋ freezes, the k-th after epoch
    k·T + 1, each keeping target^(1/n); the last one leaves some epochs to settle.
    `timing="paper"` is Algorithm 1 to the letter: a freeze at the end of every T-th epoch, each
    keeping e^(−cT) with c = ln(1/target)/E (the algorithm's "e^{cT}" is a misprint), so that the
    density is e^(−cj) after epoch j; the last one falls on the last epoch, with no training left.
    """

    name = "exponential"
    of_training = ("every", "timing")

    timing: Literal["authors", "paper"] = Field(
        default="authors", description="when to freeze: as the paper's code does, or its text says"
    )

    @property
    def shortest(self) -> int:
        """One period."""
        return self.every

    def curve(self, progress: float, target: float) -> float:
        """Return target^progress."""
        return float(target**progress)

    def moments(self, epochs: int) -> list[int]:
        """Freeze after epochs T+1, 2T+1, … (authors) or T, 2T, … (paper)."""
        if self.timing == "authors":
            return [count * self.every + 1 for count in range(1, (epochs - 1) // self.every + 1)]
        return list(range(self.every, epochs + 1, self.every))

    def freezes(self, target: float, epochs: int, steps_per_epoch: int) -> list[Freeze]:
        """Follow e^(−cj) in the paper's timing, adding a last freeze if T does not divide E."""
        even = super().freezes(target, epochs, steps_per_epoch)
        if self.timing == "authors" or self.rounds:
            return even
        steps = epochs * steps_per_epoch
        upper = [Freeze(step, float(target ** (step / steps))) for step, *_ in even]
        return [freeze for freeze in upper if freeze.step < steps] + [Freeze(steps, target)]


class DecliningSchedule(SteppedSchedule):
    """A curve that leaves density 1 at one moment, reaches the target at another, and stays."""

    of_training = ("every", "start", "end")

    start: float = Field(
        default=0.0, ge=0, lt=1, description="fraction of the epochs before anything goes"
    )
    end: float = Field(
        default=0.75, gt=0, le=1, description="fraction of the epochs at which it is reached"
    )

    @property
    def shortest(self) -> int:
        """One period between start and end; rounding both to epochs may gain one."""
        span = self.end - self.start
        return max(1, int(min((self.every - 1) / span, MAX_EPOCHS))) if span > 0 else 1

    def moments(self, epochs: int) -> list[int]:
        """Freeze T, 2T, … epochs after the start, up to the end."""
        first = budget(epochs, self.start) + self.every
        return list(range(first, budget(epochs, self.end) + 1, self.every))


class Linear(DecliningSchedule):
    """The same number of weights goes at every freeze: density = 1 − (1 − target)·progress."""

    name = "linear"

    def curve(self, progress: float, target: float) -> float:
        """Return the straight line from 1 to the target."""
        return 1 - (1 - target) * progress


class Cubic(DecliningSchedule):
    """Fast at first, then ever slower: density = target + (1 − target)·(1 − progress)³.

    Zhu and Gupta 2017, from sparsity zero: progress is (t − t₀)/(nΔt), where t₀ is `start`, Δt is
    `every` and n counts the freezes. The first one, at t₀, would take nothing and is left out.
    """

    name = "cubic"

    def curve(self, progress: float, target: float) -> float:
        """Return the cubic from 1 to the target."""
        return float(target + (1 - target) * (1 - progress) ** 3)


class Iterative(FreezeSchedule):
    """A fraction of the survivors goes after every round of training, as in iterative pruning.

    After r rounds (1 − fraction)^r of the weights are left; there are as many rounds as it takes to
    reach the target, and the last one lands on it exactly. All freezes wait for the end of a round:
    `rewind.clock` says where on the clock the next round begins.
    """

    name = "iterative"
    needs_clock_rewound: ClassVar[bool] = True

    fraction: float = Field(
        default=0.2, ge=0.01, lt=1, description="of the surviving weights, taken every round"
    )
    every: int | None = Field(
        default=None,
        ge=1,
        le=MAX_EPOCHS,
        description="epochs of a round; by default those of the search",
    )

    @property
    def trains(self) -> bool:
        """A round is trained before every freeze."""
        return True

    @property
    def round_epochs(self) -> int | None:
        """The length of a round, where it is set here."""
        return self.every

    def rounds(self, target: float) -> int:
        """Return the smallest n with (1 − fraction)^n ≤ target, but at least one.

        A twentieth of a round is not worth another: 0.8^19 is 0.01441, and the density 0.0144 that
        people write for it takes 19 rounds.
        """
        return max(1, math.ceil(math.log(target) / math.log1p(-self.fraction) - 0.05))

    def freezes(self, target: float, epochs: int, steps_per_epoch: int) -> list[Freeze]:
        """Freeze at the end of every round, at last to the target exactly."""
        if epochs == 0:
            raise FitError(
                f"schedule '{self.name}' freezes at the end of a round, so a round needs at least "
                f"one epoch; set schedule.every, or the epochs of the search"
            )
        if self.rounds(target) > MAX_ROUNDS:
            raise FitError(
                f"schedule '{self.name}' would take {self.rounds(target):,} rounds to density "
                f"{target:g}, at most {MAX_ROUNDS:,} are made; raise schedule.fraction"
            )
        # In fractions: 0.9 twice is 0.81 to the last digit, and counts come out exact.
        keep = 1 - Fraction(repr(self.fraction))
        densities = [float(keep**count) for count in range(1, self.rounds(target))] + [target]
        return [Freeze(epochs * steps_per_epoch, density) for density in densities]


@hookimpl
def gemkit_freeze_schedules() -> list[type[FreezeSchedule]]:
    """Register the schedules."""
    return [Once, Constant, Exponential, Linear, Cubic, Iterative]
