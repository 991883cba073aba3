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

    def view(self, scores):
        """Return |s|^a."""
        return {name: score.abs() ** self.exponent for name, score in scores.items()}

    def slope(self, scores):
        """Return a · |s|^(a−1) · sign(s)."""
        a = self.exponent
        return {name: a * s.abs() ** (a - 1) * s.sign() for name, s in scores.items()}

    def project_(self, scores):
        """Bring the scores back into [-1, 1]."""
        for score in scores.values():
            score.clamp_(-1, 1)


@hookimpl
def gemkit_scores():
    """Offer the scores."""
    return [PowerScores]


@hookimpl
def gemkit_pruners():
    """Offer Gem-Miner with these scores."""
    recipe = {"help": "Gem-Miner with power scores", "scores": "power", "rounding": "threshold"}
    recipe |= {"schedule": "exponential", "regularizer": "l2", "init": "signed_constant"}
    return {"power": recipe}
