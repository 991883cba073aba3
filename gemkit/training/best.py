"""Keep the network with the best validation accuracy of a fine-tuning."""

from collections.abc import Mapping

import torch

from gemkit.core.events import EpochEnded, Event
from gemkit.core.state import StateDict, Stateful, checked_tensors
from gemkit.core.tensors import Tensors


class Best:
    """Observes a training and keeps a copy of its best epoch; ties keep the earlier one.

    The copy holds only the model's parameters and buffers: a fine-tuning changes nothing else.
    """

    def __init__(self, net: Stateful) -> None:
        self.net = net
        self.accuracy: float | None = None
        self._best: Tensors = {}

    def __call__(self, event: Event) -> None:
        """Copy the network after an epoch that is better than all before."""
        if not isinstance(event, EpochEnded):
            return
        if self.accuracy is None or event.accuracy > self.accuracy:
            self.accuracy = event.accuracy
            self._best = {name: tensor.clone() for name, tensor in self._model().items()}

    @torch.no_grad()
    def load_(self) -> None:
        """Load the best epoch into the network, if an epoch has ended."""
        if self.accuracy is not None:
            own = self._model()
            for name, saved in checked_tensors(self._best, own).items():
                own[name].copy_(saved)

    def state_dict(self) -> StateDict:
        """Return the best network so far and its accuracy."""
        return {"accuracy": self.accuracy, "net": self._best}

    def load_state_dict(self, state: StateDict) -> None:
        """Load a state; a network that it does not fit refuses it."""
        accuracy = state["accuracy"]
        self.accuracy = None if accuracy is None else float(accuracy)
        net = state["net"]
        whole = isinstance(net.get("model"), Mapping)  # older files hold the mask as well
        self._best = net["model"] if whole else net
        self.load_()

    def _model(self) -> Tensors:
        """Return the tensors of the model themselves."""
        model: Tensors = self.net.state_dict()["model"]
        return model
