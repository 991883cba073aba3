"""Gem-Miner (Sreenivasan et al., "Rare Gems", NeurIPS 2022): accurate before any weight is trained.

    w_eff = w ⊙ q ⊙ r(p)          weights, alive, rounding of the scores
    p ← proj_[0,1](p − η ∇_p [L(w_eff) + λ‖p‖²])      straight through r
    every T epochs: q ← q without the lowest alive scores, along e^(−cj)

The scores p are `uniform`, r is `threshold` (or `bernoulli`), q follows `exponential`, and λ is
the weight of `l2`. Frozen scores keep feeling the penalty; q alone keeps them out of the network.
The ticket is r(p) ⊙ q as in Algorithm 1; the authors' configurations fine-tune q instead
(`finalize = "alive"`), which is another network than the one the search evaluated.
"""

from typing import Any, ClassVar

import torch

from gemkit.core.tensors import Tensors
from gemkit.parts.scores import LearnedScores, Scores
from gemkit.plugins.markers import hookimpl

_ENOUGH = 600
"""Steps for which `fastest_lr` is enough."""
_FEWEST = 200
"""Fewer steps get the rate of so many: a higher one was never measured, and collapses."""


class UniformScores(LearnedScores):
    """Scores in [0, 1], drawn uniformly and projected back after every step (Gem-Miner)."""

    name = "uniform"
    unit_interval: ClassVar[bool] = True
    fastest_lr: ClassVar[float] = 2.0

    def default_lr(self, steps: int) -> float:
        """Return the usual rate, and from 600 down to 200 steps more, so that the sum stays.

        A score has to cross half of [0, 1] however short the search is.
        """
        return super().default_lr(steps) * max(1.0, _ENOUGH / max(_FEWEST, steps))

    def init(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Draw p ~ U[0, 1]."""
        return {
            name: torch.rand(weight.shape, generator=rng, dtype=weight.dtype)
            for name, weight in weights.items()
        }

    def view(self, scores: Tensors) -> Tensors:
        """Return p itself."""
        return scores

    def slope(self, scores: Tensors) -> None:
        """View is the identity."""

    def project_(self, scores: Tensors) -> None:
        """Clamp to the unit box."""
        torch._foreach_clamp_min_(list(scores.values()), 0)
        torch._foreach_clamp_max_(list(scores.values()), 1)


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the scores."""
    return [UniformScores]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register Gem-Miner."""
    return {
        "gem_miner": {
            "help": "Gem-Miner: learned scores, rounding, L2 and iterative freezing (Rare Gems)",
            "scores": "uniform",
            "rounding": "threshold",
            "allocation": "global",
            "schedule": "exponential",
            "regularizer": "l2",
            "init": "signed_constant",
        }
    }
