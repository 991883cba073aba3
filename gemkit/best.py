"""The best network of a fine-tuning, by validation accuracy."""

import copy

from gemkit.events import EpochEnded, Event
from gemkit.stateful import State, Stateful


class Best:
    """Listens to a training, and keeps the network of its best epoch; ties keep the earlier."""

    def __init__(self, net: Stateful) -> None:
        self.net = net
        self.accuracy: float | None = None
        self._kept: State = {}

    def __call__(self, event: Event) -> None:
        """Copy the network after an epoch that is better than all before."""
        if not isinstance(event, EpochEnded):
            return
        if self.accuracy is None or event.accuracy > self.accuracy:
            self.accuracy, self._kept = event.accuracy, copy.deepcopy(self.net.state())

    def load_(self) -> None:
        """Put the best network in the place of the last, if an epoch has ended."""
        if self.accuracy is not None:
            self.net.restore_(self._kept)

    def state(self) -> State:
        """Return the best network so far and its accuracy."""
        return {"accuracy": self.accuracy, "net": self._kept}

    def restore_(self, state: State) -> None:
        """Load a saved state; trying it on the network refuses one that does not fit."""
        accuracy = state["accuracy"]
        self.accuracy = None if accuracy is None else float(accuracy)
        self._kept = state["net"]
        self.load_()
