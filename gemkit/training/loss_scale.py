"""Loss scaling for fp16, in which small gradients would underflow.

The usual rule (Micikevicius et al., "Mixed Precision Training", 2018): the loss is multiplied by a
scale, and gradients are divided by it. A step with gradients that are not finite is skipped, and
the scale halved; after 2,000 good steps it is doubled. Whether to skip is read back from the device
in every step.
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
        self.skipped = torch.zeros((), device=device)
        """How many steps of the current epoch were skipped."""

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
        """Adapt the scale after a step, and count it if it was skipped."""
        self.skipped.add_(self._found)
        torch._amp_update_scale_(self.scale, self._good, self._found, 2.0, 0.5, _GOOD_STEPS)

    def is_stuck(self, steps: int) -> bool:
        """Whether every step of an epoch was skipped, although the scale is below 1.

        Above 1, the scale may still be falling.
        """
        return bool(self.skipped == steps) and bool(self.scale < 1)

    def state_dict(self) -> StateDict:
        """Return the scale and its counts."""
        return {"scale": self.scale, "good": self._good, "skipped": self.skipped}

    def load_state_dict(self, state: StateDict) -> None:
        """Load a saved state."""
        own: Tensors = self.state_dict()
        state = {"skipped": torch.zeros(()), **state}  # missing in older checkpoints
        for name, value in checked_tensors(state, own).items():
            own[name].copy_(value)
