"""Power scores: what is strong learns fast, what is weak hardly moves.

    seen = |s|^a,   d seen / d s = a · |s|^(a−1) · sign(s)

Powerpropagation (Schwarz et al. 2021) does this to weights, to make them sparse; here it is scores.
"""

import torch
from pydantic import Field

from gemkit import LearnedScores, hookimpl


class PowerScores(LearnedScores):
    """Scores in [-1, 1] that are seen as a power of their size."""

    name = "power"
    unit_interval = True  # so they can be rounded against a threshold
    fastest_lr = 2.0

    exponent: float = Field(default=2.0, ge=1, le=8, description="a; 1 is the size itself")

    def init(self, weights, rng):
        """Draw scores whose views are spread evenly over [0, 1]."""
        return {
            name: (torch.rand(weight.shape, generator=rng) ** (1 / self.exponent)).to(weight.dtype)
            for name, weight in weights.items()
        }

    def view(self, score):
        """Return |s|^a."""
        return score.abs() ** self.exponent

    def slope(self, score):
        """Return a · |s|^(a−1) · sign(s)."""
        return self.exponent * score.abs() ** (self.exponent - 1) * score.sign()

    def project_(self, score):
        """Bring the scores back into [-1, 1]."""
        score.clamp_(-1, 1)


@hookimpl
def gemkit_scores():
    """Offer the scores."""
    return [PowerScores]


@hookimpl
def gemkit_pruners():
    """Offer Gem-Miner with these scores."""
    recipe = {
        "help": "Gem-Miner with power scores",
        "scores": "power",
        "rounding": "threshold",
        "schedule": "exponential",
        "regularizer": "l2",
        "init": "signed_constant",
    }
    return {"power": recipe}
