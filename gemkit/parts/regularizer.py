"""Regularizers: penalties on learned scores, or on the gates they make."""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gemkit.core.tensors import Tensors
from gemkit.parts.now import Now
from gemkit.parts.part import Part


class Regularizer(Part):
    """A penalty, added to the loss."""

    on: ClassVar[Literal["scores", "gates"]] = "scores"
    """What it is a function of: the scores, or the gates or masks that rounding makes of them.

    The gradient of a penalty on gates passes the slope of the rounding, as that of the loss does.
    """
    needs_density: ClassVar[bool] = False
    """Whether it asks for `now.density`."""
    steers_density: ClassVar[bool] = False
    """Whether it brings about the target density, which the rounding must then leave to it."""

    @abstractmethod
    def penalty(self, values: Tensors, now: Now) -> Tensor:
        """Return the penalty, a scalar, differentiable in the values."""

    def strength(self, now: Now) -> Tensor | float | None:
        """Return λ as it is now, for metrics; None where there is no such number."""
        return None

    def add_gradient_(self, gradients: Tensors, values: Tensors, now: Now) -> None:
        """Add d penalty / d values to `gradients`; override where a closed form is cheaper.

        Called once in every step. A penalty with state overrides it too: only here may it change
        `now.state`.
        """
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        with torch.enable_grad():
            pulls = torch.autograd.grad(
                self.penalty(leaves, now), list(leaves.values()), materialize_grads=True
            )
        torch._foreach_add_(list(gradients.values()), list(pulls))
