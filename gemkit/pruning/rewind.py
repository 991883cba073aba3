"""Rewinding: after every freeze, back to an earlier state, an earlier moment, or both."""

from collections.abc import Sequence
from fractions import Fraction

from gemkit.core.state import StateDict, checked_tensors
from gemkit.core.tensors import Tensors
from gemkit.parts.recipe import Rewind
from gemkit.parts.schedule import Freeze
from gemkit.pruning.masked import MaskedNet
from gemkit.training.loop import Training


def laps(rewind: Rewind, freezes: Sequence[Freeze], last: int, steps_per_epoch: int) -> list[range]:
    """List what the clock shows on its way to every freeze, and then to the `last` step.

    Where anything is rewound the search ends with its last freeze: to train what is then found is
    what fine-tuning is for.
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
    """Count the whole steps in a number of epochs, taken at its decimal face value."""
    return int(Fraction(repr(float(epochs))) * steps_per_epoch)


class Rewinder:
    """Goes back, in one search: it remembers the state to return to as training passes it."""

    def __init__(self, rewind: Rewind, net: MaskedNet, training: Training) -> None:
        self.rewind = rewind
        self.net = net
        self.training = training
        self._anchor: Tensors | None = None

    def remember(self) -> None:
        """Train to the moment that weights return to, and remember all they consist of."""
        if self.rewind.weights is not None and self._anchor is None:
            self.training.until(steps_in(self.rewind.weights, self.training.steps_per_epoch))
            self._anchor = self.net.snapshot()

    def state_dict(self) -> StateDict:
        """Return what weights go back to, once it is known."""
        return {"anchor": self._anchor}

    def load_state_dict(self, state: StateDict) -> None:
        """Know what a rewinder did whose state this is."""
        if state["anchor"] is not None:
            self._anchor = checked_tensors(state["anchor"], self.net.snapshot())

    def go_back(self) -> None:
        """Rewind what is to be rewound; the optimizer then knows nothing of what it did since."""
        trainer = self.training.trainer
        if self._anchor is not None:
            self.net.rewind_(self._anchor)
        if self.rewind.clock is not None:
            self.training.set_clock(steps_in(self.rewind.clock, self.training.steps_per_epoch))
        if self.rewind.happens:
            trainer.reset_optimizer_()
