"""Rewinding: after every freeze, restore earlier weights, set the clock back, or both."""

from collections.abc import Sequence
from fractions import Fraction

from gemkit.core.state import StateDict, checked_tensors
from gemkit.core.tensors import Tensors
from gemkit.parts.recipe import Rewind
from gemkit.parts.schedule import Freeze
from gemkit.pruning.masked import MaskedNet
from gemkit.training.loop import TrainLoop


def segments(
    rewind: Rewind, freezes: Sequence[Freeze], last: int, steps_per_epoch: int
) -> list[range]:
    """List the steps of the clock before every freeze, and from the last freeze to step `last`.

    If anything is rewound, the search ends with its last freeze: fine-tuning trains the result.
    """
    if rewind.happens:
        last = freezes[-1].step
    starts = [0, *(freeze.step for freeze in freezes)]
    if rewind.clock is not None:
        again = steps_in(rewind.clock, steps_per_epoch)
        starts[1:-1] = [again] * (len(freezes) - 1)
    stops = [*(freeze.step for freeze in freezes), last]
    return [range(start, stop) for start, stop in zip(starts, stops, strict=True)]


def steps_in(epochs: float, steps_per_epoch: int) -> int:
    """Return ⌊epochs · steps per epoch⌋, exactly: epochs count as the decimal that is written."""
    return int(Fraction(repr(float(epochs))) * steps_per_epoch)


class Rewinder:
    """Rewinds one search; takes the snapshot to return to when training reaches its step."""

    def __init__(self, rewind: Rewind, net: MaskedNet, loop: TrainLoop) -> None:
        self.rewind = rewind
        self.net = net
        self.loop = loop
        self._anchor: Tensors | None = None

    def take_snapshot(self) -> None:
        """Train to the step that weights are rewound to, and take a snapshot."""
        if self.rewind.weights is not None and self._anchor is None:
            self.loop.run_until(steps_in(self.rewind.weights, self.loop.steps_per_epoch))
            self._anchor = self.net.snapshot()

    def state_dict(self) -> StateDict:
        """Return the snapshot, or None before it is taken."""
        return {"anchor": self._anchor}

    def load_state_dict(self, state: StateDict) -> None:
        """Load a saved state."""
        if state["anchor"] is not None:
            self._anchor = checked_tensors(state["anchor"], self.net.snapshot())

    def rewind_(self) -> None:
        """Rewind what the recipe says, and reset the optimizer if anything is rewound."""
        if self._anchor is not None:
            self.net.rewind_(self._anchor)
        if self.rewind.clock is not None:
            self.loop.set_clock(steps_in(self.rewind.clock, self.loop.steps_per_epoch))
        if self.rewind.happens:
            self.loop.trainer.reset_optimizer_()
