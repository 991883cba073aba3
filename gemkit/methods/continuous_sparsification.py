"""Continuous Sparsification (Savarese et al., "Winning the Lottery with Continuous Sparsification",
NeurIPS 2020): scores and weights train together, under gates that harden.

    w_eff = w ⊙ σ(β s)              β = 200^(t/T), from 1 to 200 over the search
    loss + λ Σ σ(β s)
    ticket: 1[s > 0]

Scores start at a constant s₀, which sets the density together with λ. The density is a result, not
a choice; so a freeze at the end keeps the highest scores where more than the target are positive.
"""

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from gemkit.builtin.auto import Steered
from gemkit.core.tensors import Tensors
from gemkit.parts.now import Now
from gemkit.parts.regularizer import Regularizer
from gemkit.parts.rounding import Rounding
from gemkit.parts.scores import LearnedScores, Scores
from gemkit.plugins.markers import hookimpl


class ConstantScores(LearnedScores):
    """Scores that all start at the same number, free to be any (Continuous Sparsification)."""

    name = "constant"
    fastest_lr: ClassVar[float] = 1.0

    start: float = Field(default=0.0, ge=-100, le=100, description="the first score (s₀)")

    def init(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Return s₀ everywhere."""
        return {
            name: torch.full(weight.shape, self.start, dtype=weight.dtype)
            for name, weight in weights.items()
        }

    def view(self, scores: Tensors) -> Tensors:
        """Return s itself."""
        return scores

    def slope(self, scores: Tensors) -> None:
        """View is the identity."""

    def project_(self, scores: Tensors) -> None:
        """Leave the scores free."""


class Sigmoid(Rounding):
    """Soft gates that harden: σ(β s), with β growing from 1 to its last value.

    The ticket keeps the positive scores.
    """

    name = "sigmoid"
    soft = True

    last: float = Field(default=200.0, ge=1, le=1e6, description="β at the end of the search")

    def masks(self, view: Tensors, now: Now) -> Tensors:
        """Return σ(β s)."""
        gates = torch._foreach_mul(list(view.values()), self._beta(now))
        torch._foreach_sigmoid_(gates)
        return dict(zip(view, gates, strict=True))

    def slope(self, view: Tensors, masks: Tensors, now: Now) -> Tensors:
        """Return β·σ(β s)·(1 − σ(β s)).

        The gates are those of the forward pass, one step ago, and so is β.
        """
        slopes = torch._foreach_mul(list(masks.values()), self._beta(now, ago=1))
        rest = torch._foreach_neg(list(masks.values()))
        torch._foreach_add_(rest, 1)
        torch._foreach_mul_(slopes, rest)
        return dict(zip(masks, slopes, strict=True))

    def hard(self, view: Tensors, now: Now) -> Tensors:
        """Keep positive scores."""
        return {name: score > 0 for name, score in view.items()}

    def _beta(self, now: Now, ago: int = 0) -> Tensor:
        return torch.pow(self.last, (now.step - ago) / max(1, now.steps))


class GateSum(Regularizer):
    """Pull every gate down by the same amount: λ·Σ gate, the expected number of kept weights."""

    name = "gate_sum"
    on = "gates"

    weight: float = Field(default=1e-5, ge=0, description="λ")

    def penalty(self, values: Tensors, now: Now) -> Tensor:
        """Return λ·Σ gate."""
        return self.weight * torch.stack([gate.sum() for gate in values.values()]).sum()

    def strength(self, now: Now) -> float:
        """Return λ."""
        return self.weight

    def add_gradient_(self, gradients: Tensors, values: Tensors, now: Now) -> None:
        """Add λ."""
        torch._foreach_add_(list(gradients.values()), self.weight)


class AutoGates(Steered):
    """Pull every gate down as strongly as the target density takes: λ·Σ gate, as `auto` sets λ.

    Gates start soft, so what follows the curve is their mean, which becomes the density of the
    ticket as they harden.
    """

    name = "auto_gates"
    on = "gates"

    def penalty(self, values: Tensors, now: Now) -> Tensor:
        """Return λ·Σ gate."""
        return self.strength(now) * torch.stack([gate.sum() for gate in values.values()]).sum()

    def pull(self, values: list[Tensor]) -> list[Tensor]:
        """Return 1 everywhere."""
        return [torch.ones_like(gate) for gate in values]


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the scores."""
    return [ConstantScores]


@hookimpl
def gemkit_roundings() -> list[type[Rounding]]:
    """Register the gates."""
    return [Sigmoid]


@hookimpl
def gemkit_regularizers() -> list[type[Regularizer]]:
    """Register the penalty."""
    return [GateSum, AutoGates]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register Continuous Sparsification."""
    return {
        "continuous_sparsification": {
            "help": "Weights train under hardening gates (Savarese 2020)",
            "train": "both",
            "scores": "constant",
            "rounding": "sigmoid",
            "schedule": {"name": "once", "after": 1.0},
            "regularizer": "gate_sum",
        }
    }
