"""AC/DC (Peste et al., "Alternating Compressed/DeCompressed Training", NeurIPS 2021) for gemkit.

    train dense for 10 % of the epochs
    repeat:  mask ← the top k of |w|,  train 5 % under it      (compressed)
             mask ← 1,                 train 5 % without       (decompressed; w starts at 0 there)
    mask ← the top k of |w|,  train the last 15 % under it

With 100 epochs these are the phases of the paper on ImageNet: masks after epochs 10, 20, … 70 and
85, none after 15, 25, … 75. Phases are whole epochs. All layers compete for k. The authors reset
all momentum when weights return; here those that return have none, and the others keep theirs.
"""

from itertools import count
from typing import Any

from pydantic import Field

from gemkit import Freeze, FreezeSchedule, hookimpl
from gemkit.core.errors import FitError


class Alternate(FreezeSchedule):
    """Phases with the target density and without a mask, in turns; the last one has the mask."""

    name = "alternate"

    warmup: float = Field(
        default=0.1, ge=0, lt=1, description="fraction of the epochs before the first mask"
    )
    phase: float = Field(
        default=0.05, gt=0, lt=1, description="fraction of the epochs that a phase takes"
    )
    last: float = Field(
        default=0.15, ge=0, lt=1, description="fraction of the epochs under the last mask"
    )

    @property
    def trains(self) -> bool:
        """Phases are spread over training."""
        return True

    def freezes(self, target: float, epochs: int, steps_per_epoch: int) -> list[Freeze]:
        """Mask and unmask at the ends of epochs.

        Before the last mask comes a phase without one, longer where the epochs do not divide.
        """
        first, final = round(self.warmup * epochs), epochs - round(self.last * epochs)
        phase = max(1, round(self.phase * epochs))
        if not first < final:
            raise FitError(
                f"schedule '{self.name}' has no epoch between its warm-up and its last phase in a "
                f"search of {epochs}; train longer, or lower schedule.warmup or schedule.last"
            )
        freezes: list[tuple[int, float, float]] = []
        for masked in count(first, 2 * phase):
            if masked + 2 * phase > final:
                break
            # All weights are drawn again, and all of them return.
            freezes += [(masked, target, 0.0), (masked + phase, 1.0, 1.0)]
        freezes.append((final, target, 0.0))
        return [Freeze(epoch * steps_per_epoch, *how) for epoch, *how in freezes]


@hookimpl
def gemkit_freeze_schedules() -> list[type[FreezeSchedule]]:
    """Register the schedule."""
    return [Alternate]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register AC/DC."""
    return {
        "ac_dc": {
            "help": "AC/DC: train with and without a magnitude mask in turns (Peste et al. 2021)",
            "scores": "magnitude",
            "schedule": "alternate",
            "grow": "magnitude",
        }
    }
