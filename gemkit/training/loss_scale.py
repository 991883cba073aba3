"""Loss scaling for fp16: small gradients would vanish, so the loss is multiplied before backward.

The usual rule (Micikevicius et al., "Mixed Precision Training", 2018): gradients are divided by the
scale again. A step with gradients that are not finite is skipped, and the scale halved; after 2,000
good steps it is doubled. Whether to skip is read back from the device in every step.
"""

import torch
from torch import Tensor, nn

from gemkit.core.state import StateDict, checked_tensors
from gemkit.core.tensors import Tensors

_FIRST = 2.0**16
_GOOD_STEPS = 2000


class LossScale:
    """The scale of the loss, and how many good steps it has seen."""

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), _FIRST, device=device)
        self._good = torch.zeros((), dtype=torch.int32, device=device)
        self._found = torch.zeros((), device=device)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to differentiate."""
        return loss * self.scale

    @torch.no_grad()
    def unscale_(self, model: nn.Module) -> bool:
        """Divide the gradients of a model by the scale; return whether to take the step."""
        gradients = [own.grad for own in model.parameters() if own.grad is not None]
        self._found.zero_()
        inverse = self.scale.reciprocal()
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, self._found, inverse)
        return not bool(self._found)

    def update_(self) -> None:
        """Adapt the scale after a step."""
        torch._amp_update_scale_(self.scale, self._good, self._found, 2.0, 0.5, _GOOD_STEPS)

    def state_dict(self) -> StateDict:
        """Return the scale and its count."""
        return {"scale": self.scale, "good": self._good}

    def load_state_dict(self, state: StateDict) -> None:
        """Load a saved state."""
        own: Tensors = self.state_dict()
        for name, value in checked_tensors(state, own).items():
            own[name].copy_(value)
