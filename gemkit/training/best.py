"""Keep the network with the best validation metric of a fine-tuning."""

from collections.abc import Mapping

import torch

from gemkit.core.events import EpochEnded, Event
from gemkit.core.state import StateDict, Stateful, checked_tensors
from gemkit.core.tensors import Tensors


class Best:
    """Observes fine-tuning, and keeps a copy of its best epoch; ties keep the earlier one.

    The copy holds only the model's parameters and buffers: nothing else changes.
    """

    def __init__(self, net: Stateful) -> None:
        self.net = net
        self.value: float | None = None
        self._best: Tensors = {}

    def __call__(self, event: Event) -> None:
        """Copy the network after an epoch that is better than all before."""
        if not isinstance(event, EpochEnded):
            return
        sign = 1 if event.higher_is_better else -1
        if self.value is None or sign * event.value > sign * self.value:
            self.value = event.value
            self._best = {name: tensor.clone() for name, tensor in self._model().items()}

    @torch.no_grad()
    def load_(self) -> None:
        """Load the best epoch into the network, if there is one."""
        if self.value is not None:
            own = self._model()
            for name, saved in checked_tensors(self._best, own).items():
                own[name].copy_(saved)

    def state_dict(self) -> StateDict:
        """Return the best network so far and its metric."""
        return {"accuracy": self.value, "net": self._best}  # the key of older files

    def load_state_dict(self, state: StateDict) -> None:
        """Load a saved state; refuse one that does not fit the network."""
        value = state["accuracy"]
        self.value = None if value is None else float(value)
        net = state["net"]
        whole = isinstance(net.get("model"), Mapping)  # older files hold the mask as well
        self._best = net["model"] if whole else net
        self.load_()

    def _model(self) -> Tensors:
        """Return the tensors of the model, not copies."""
        model: Tensors = self.net.state_dict()["model"]
        return model
