"""LAMP (Lee et al., "Layer-adaptive Sparsity for the Magnitude-based Pruning", 2021).

    score(u) = x_u² / Σ_{v: x_v ≥ x_u} x_v²        within a layer, x = |w|; then one global ranking

The largest weight of a layer has score 1 unless others are as large.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from gemkit.core.probe import Probe, Wanted
from gemkit.core.tensors import Tensors
from gemkit.methods.baselines import Magnitude
from gemkit.parts.scores import MeasuredScores, Scores
from gemkit.plugins.markers import hookimpl


class Lamp(MeasuredScores):
    """The share of a squared score among all of its layer that are as high or higher (LAMP)."""

    name = "lamp"
    needs_signal = False

    of: Scores = Field(default=Magnitude(), description="the scores that are squared")

    def batches_wanted(self) -> Wanted:
        """Ask for what the inner scores want."""
        return self.of.batches_wanted()

    def importance(self, probe: Probe) -> Tensors:
        """Return x_u² / Σ x_v², in double precision; pruned weights count nothing."""
        inner = self.of.importance(probe)
        return {
            name: _lamp(torch.where(probe.alive[name], score, 0)) for name, score in inner.items()
        }


def _lamp(score: Tensor) -> Tensor:
    squares = score.double().square().flatten()
    ordered, order = torch.sort(squares)  # ascending: the tail sums are over what is as high
    tails = ordered.flip(0).cumsum(0).flip(0)
    # Equal scores share the sum over all of them.
    first = torch.searchsorted(ordered, ordered)
    shares = ordered / tails[first].clamp(min=torch.finfo(torch.float64).tiny)
    return torch.empty_like(squares).scatter_(0, order, shares).view(score.shape)


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the score."""
    return [Lamp]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register LAMP in rounds of training and pruning."""
    return {
        "lamp": {
            "help": "LAMP: magnitude within layers, iterative, clock rewound (Lee et al. 2021)",
            "scores": "lamp",
            "schedule": "iterative",
            "rewind": {"clock": 0.0},
        }
    }
