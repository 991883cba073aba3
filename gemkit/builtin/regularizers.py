"""Regularizers: penalties that pull learned scores towards zero."""

import torch
from pydantic import Field
from torch import Tensor

from gemkit.core.tensors import Tensors
from gemkit.parts.now import Now
from gemkit.parts.regularizer import Regularizer
from gemkit.plugins.markers import hookimpl


class L1(Regularizer):
    """Pull every score down by the same amount: λ·Σ|p|, over all scores, frozen ones too."""

    name = "l1"

    weight: float = Field(default=1e-4, ge=0, description="λ")

    def penalty(self, values: Tensors, now: Now) -> Tensor:
        """Return λ·Σ|p|."""
        return self.weight * torch.stack([score.abs().sum() for score in values.values()]).sum()

    def strength(self, now: Now) -> float:
        """Return λ."""
        return self.weight

    def add_gradient_(self, gradients: Tensors, values: Tensors, now: Now) -> None:
        """Add λ·sign(p)."""
        signs = torch._foreach_sign(list(values.values()))
        torch._foreach_add_(list(gradients.values()), signs, alpha=self.weight)


class L2(Regularizer):
    """Shrink every score in proportion: λ·Σp², over all scores, frozen ones too.

    Squared and summed, no root and no mean: with SGD it equals a weight decay of 2λ. Without any
    task gradient the density of the rounded mask follows 1 − ½·exp(2λ·Ση/(1−momentum)).
    """

    name = "l2"

    weight: float = Field(default=1e-4, ge=0, description="λ")

    def penalty(self, values: Tensors, now: Now) -> Tensor:
        """Return λ·Σp²."""
        return self.weight * torch.stack([score.square().sum() for score in values.values()]).sum()

    def strength(self, now: Now) -> float:
        """Return λ."""
        return self.weight

    def add_gradient_(self, gradients: Tensors, values: Tensors, now: Now) -> None:
        """Add 2λ·p."""
        torch._foreach_add_(list(gradients.values()), list(values.values()), alpha=2 * self.weight)


class NoRegularizer(Regularizer):
    """No penalty: the task alone moves the scores."""

    name = "none"

    def penalty(self, values: Tensors, now: Now) -> Tensor:
        """Return 0."""
        return torch.zeros(())

    def add_gradient_(self, gradients: Tensors, values: Tensors, now: Now) -> None:
        """Add nothing."""


@hookimpl
def gemkit_regularizers() -> list[type[Regularizer]]:
    """Register the regularizers."""
    return [L1, L2, NoRegularizer]
