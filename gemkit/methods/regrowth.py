"""Sparse training with regrowth: SET (Mocanu et al. 2018) and RigL (Evci et al. 2020).

    start: a random mask with Erdős–Rényi densities
    every 100 steps, until 75 % of training:
        drop the fraction f(t) = α/2 · (1 + cos(π t / T_end)) of the smallest |w| of each layer
        grow as many: where the dense gradient is largest (RigL), or at random (SET)

Grown weights start at zero, and their momentum too. A weight that was just dropped may be grown at
once, and then it keeps its value, as in the authors' code.
"""

import math
from typing import Any

from pydantic import Field

from gemkit.core.errors import FitError
from gemkit.core.limits import MAX_FREEZES
from gemkit.core.probe import Probe, Wanted
from gemkit.core.tensors import Tensors
from gemkit.methods.baselines import Magnitude, Random
from gemkit.parts.schedule import Freeze, FreezeSchedule
from gemkit.parts.scores import MeasuredScores, Scores
from gemkit.plugins.markers import hookimpl


class Gradient(MeasuredScores):
    """The size of the gradient, also where weights are pruned: |∂L/∂w|, summed over batches."""

    name = "gradient"

    batches: int = Field(default=1, ge=1, le=100_000, description="training batches to sum over")

    def batches_wanted(self) -> Wanted:
        """Ask for them."""
        return Wanted(self.batches)

    def importance(self, probe: Probe) -> Tensors:
        """Return |∂L/∂w| of the network as it is, as if its pruned weights were alive at zero."""
        weights = probe.leaves()
        gradient = probe.gradient(weights, training=True, dense=True)
        return {name: own.abs() for name, own in gradient.items()}


class RandomStart(MeasuredScores):
    """Chance for the first freeze, and other scores for those after it."""

    name = "random_start"
    needs_signal = False

    of: Scores = Field(default=Magnitude(), description="scores for all freezes but the first")

    def batches_wanted(self) -> Wanted:
        """Ask for what the other scores want."""
        return self.of.batches_wanted()

    def importance(self, probe: Probe) -> Tensors:
        """Return random numbers for the first freeze."""
        return (Random() if probe.turn == 0 else self.of).importance(probe)


class Regrow(FreezeSchedule):
    """The target from the first step, and every few steps another part of the mask moves.

    The part that is dropped and grown again falls along a cosine to zero.
    """

    name = "regrow"

    every: int = Field(
        default=100, ge=1, lt=2**63, description="steps from one update to the next (ΔT)"
    )
    fraction: float = Field(default=0.3, gt=0, le=1, description="dropped at first (α)")
    until: float = Field(
        default=0.75, gt=0, le=1, description="fraction of the steps at which updates end"
    )

    @property
    def trains(self) -> bool:
        """Updates are spread over training."""
        return True

    def freezes(self, target: float, epochs: int, steps_per_epoch: int) -> list[Freeze]:
        """Set the density before the first step, then drop and grow."""
        last = self.until * epochs * steps_per_epoch
        moments = range(self.every, math.ceil(last), self.every)
        if len(moments) >= MAX_FREEZES:
            raise FitError(
                f"schedule '{self.name}' would freeze {len(moments) + 1:,} times, at most "
                f"{MAX_FREEZES:,} are recorded; raise schedule.every"
            )
        return [Freeze(0, target)] + [
            Freeze(step, target, self.fraction / 2 * (1 + math.cos(math.pi * step / last)))
            for step in moments
        ]


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the scores."""
    return [Gradient, RandomStart]


@hookimpl
def gemkit_freeze_schedules() -> list[type[FreezeSchedule]]:
    """Register the schedule."""
    return [Regrow]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register SET and RigL."""
    rigl = {
        "help": "RigL: drop small weights, grow where the gradient is large (Evci et al. 2020)",
        "scores": {"name": "random_start", "of": "magnitude"},
        "grow": "gradient",
        "allocation": "erk",
        "schedule": "regrow",
    }
    return {
        "rigl": rigl,
        "set": rigl
        | {
            "help": "SET: drop small weights, grow others at random (Mocanu et al. 2018)",
            "grow": "random",
        },
    }
