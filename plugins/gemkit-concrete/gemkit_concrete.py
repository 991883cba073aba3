"""Concrete gates for gemkit: learn how likely every weight is to be kept, and draw the network.

    s: log-odds of a gate      p = σ(s)      m ~ Bernoulli(p)
    relaxed gate: z = σ((s + logistic noise) / τ),  m = 1[z > ½]

The forward pass uses the hard gate m and the backward pass the slope of the relaxed gate z; a
penalty draws the expected number of kept weights to the density asked for. In the spirit of
Concrete Ticket Search (arXiv 2512.07142) and of relaxed Bernoulli gates (arXiv 2603.08914), but not
either of them: the forward pass here is hard, and the weight of the penalty is a plain number. The
relaxation is that of Maddison et al. (2017) and Jang et al. (2017).
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from gemkit import (
    LearnedScores,
    Now,
    Regularizer,
    Rounding,
    Scores,
    Tensors,
    hookimpl,
)


class LogOdds(LearnedScores):
    """Log-odds of keeping a weight, free to be any number; seen as the probability σ(s)."""

    name = "log_odds"
    unit_interval = True
    fastest_lr = 10.0

    start: float = Field(default=0.5, gt=0, lt=1, description="probability they are drawn around")
    spread: float = Field(default=0.5, ge=0, le=10, description="standard deviation of the draw")

    def init(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Draw s ~ N(logit(start), spread²)."""
        centre = float(torch.logit(torch.tensor(self.start, dtype=torch.float64)))
        return {
            name: torch.randn(weight.shape, generator=rng, dtype=weight.dtype) * self.spread
            + centre
            for name, weight in weights.items()
        }

    def default_lr(self, steps: int) -> float:
        """Go ten times as fast as scores in [0, 1]: log-odds have a longer way to go."""
        return 10 * super().default_lr(steps)

    def view(self, scores: Tensors) -> Tensors:
        """Return σ(s)."""
        return {name: torch.sigmoid(score) for name, score in scores.items()}

    def slope(self, scores: Tensors) -> Tensors:
        """Return σ(s)·(1 − σ(s))."""
        return {name: seen * (1 - seen) for name, seen in self.view(scores).items()}

    def project_(self, scores: Tensors) -> None:
        """Leave the log-odds free."""


class Concrete(Rounding):
    """Draw each weight with its probability; gradients take the slope of the relaxed gate.

    The noise that was drawn is not kept. The slope is taken at the median of all noise that
    would have given the same hard gate, which varies less than the noise itself.
    """

    name = "concrete"
    needs_unit_interval = True

    temperature: float = Field(
        default=1.0, ge=0.1, le=10, description="τ; lower is closer to the hard gate, and noisier"
    )

    def masks(self, view: Tensors, now: Now) -> Tensors:
        """Draw m ~ Bernoulli(p)."""
        return {
            name: seen > torch.rand(seen.shape, generator=now.rng).to(seen.device)
            for name, seen in view.items()
        }

    def slope(self, view: Tensors, masks: Tensors, now: Now) -> Tensors:
        """Return dz/dp = z·(1 − z) / (τ·p·(1 − p)) at the median of the noise behind `masks`."""
        return {name: self._slope(seen, masks[name]) for name, seen in view.items()}

    def _slope(self, view: Tensor, mask: Tensor) -> Tensor:
        inside = torch.finfo(view.dtype).eps ** 0.5
        p = view.clamp(inside, 1 - inside)
        uniform = torch.where(mask.bool(), 1 - p / 2, (1 - p) / 2)
        z = torch.sigmoid((p.logit() + uniform.logit()) / self.temperature)
        return z * (1 - z) / (self.temperature * p * (1 - p))


class ExpectedDensity(Regularizer):
    """Draw the expected density of log-odds scores to the density of the search.

    The penalty is λ·N·(mean σ(s) − ρ)², over all N scores; its pull on one does not depend on N.
    """

    name = "expected_density"

    weight: float = Field(default=3e-4, ge=0, description="λ")
    density: float | None = Field(
        default=None, gt=0, le=1, description="ρ; unset: the density of the search"
    )

    def penalty(self, values: Tensors, now: Now) -> Tensor:
        """Return λ·N·(mean σ(s) − ρ)²."""
        gates = torch.cat([torch.sigmoid(score).reshape(-1) for score in values.values()])
        excess = gates.sum() / max(1, len(gates)) - (self.density or now.target)
        return self.weight * len(gates) * excess.square()


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Offer the scores."""
    return [LogOdds]


@hookimpl
def gemkit_roundings() -> list[type[Rounding]]:
    """Offer the rounding."""
    return [Concrete]


@hookimpl
def gemkit_regularizers() -> list[type[Regularizer]]:
    """Offer the penalty."""
    return [ExpectedDensity]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Offer the search with concrete gates."""
    return {
        "concrete_gates": {
            "help": "Gates drawn from learned log-odds, their expected number held to the density",
            "scores": "log_odds",
            "rounding": "concrete",
            "schedule": "exponential",
            "regularizer": "expected_density",
            "init": "signed_constant",
            "finalize": "alive",
        }
    }
