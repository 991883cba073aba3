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

    The gradient of a penalty on gates passes the slope of the rounding, like that of the loss.
    """
    needs_density: ClassVar[bool] = False
    """Whether it uses `now.density`."""
    steers_density: ClassVar[bool] = False
    """Whether it drives the density to the target, so that the rounding must not fix it."""

    @abstractmethod
    def penalty(self, values: Tensors, now: Now) -> Tensor:
        """Return the penalty, a scalar, differentiable in the values."""

    def strength(self, now: Now) -> Tensor | float | None:
        """Return the current λ, for metrics; None if there is none."""
        return None

    def add_gradient_(self, gradients: Tensors, values: Tensors, now: Now) -> None:
        """Add d penalty / d values to `gradients`; override it if a closed form is cheaper.

        Called once in every step. A penalty with state overrides it too: it may change `now.state`
        only here.
        """
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        with torch.enable_grad():
            pulls = torch.autograd.grad(
                self.penalty(leaves, now), list(leaves.values()), materialize_grads=True
            )
        torch._foreach_add_(list(gradients.values()), list(pulls))
