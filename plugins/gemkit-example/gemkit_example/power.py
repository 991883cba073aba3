"""Power scores: large scores learn fast, small ones hardly move.

    view = |s|^a,   d view / d s = a · |s|^(a−1) · sign(s)

Powerpropagation (Schwarz et al. 2021) does this to weights; here it is applied to scores.
"""

import torch
from pydantic import Field

from gemkit import LearnedScores, hookimpl


class PowerScores(LearnedScores):
    """Scores in [-1, 1], viewed as a power of their absolute value."""

    name = "power"
    unit_interval = True  # so that they can be rounded by a threshold
    fastest_lr = 2.0

    exponent: float = Field(default=2.0, ge=1, le=8, description="the exponent a")

    def init(self, weights, rng):
        """Draw scores whose views are uniform in [0, 1]."""
        # Rounded from double precision, roots are the same on every processor, in practice.
        draws = {name: torch.rand(weight.shape, generator=rng) for name, weight in weights.items()}
        roots = {name: draw.double() ** (1 / self.exponent) for name, draw in draws.items()}
        return {name: root.to(weights[name].dtype) for name, root in roots.items()}

    def view(self, scores):
        """Return |s|^a."""
        return {name: score.abs() ** self.exponent for name, score in scores.items()}

    def slope(self, scores):
        """Return a · |s|^(a−1) · sign(s)."""
        a = self.exponent
        return {name: a * s.abs() ** (a - 1) * s.sign() for name, s in scores.items()}

    def project_(self, scores):
        """Clamp the scores to [-1, 1]."""
        for score in scores.values():
            score.clamp_(-1, 1)


@hookimpl
def gemkit_scores():
    """Register the scores."""
    return [PowerScores]


@hookimpl
def gemkit_pruners():
    """Register Gem-Miner with these scores."""
    recipe = {"help": "Gem-Miner with power scores", "scores": "power", "rounding": "threshold"}
    recipe |= {"schedule": "exponential", "regularizer": "l2", "init": "signed_constant"}
    return {"power": recipe}
