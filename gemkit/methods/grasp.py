"""GraSP (Wang et al., "Picking winning tickets before training by preserving gradient flow", 2020).

    g = Σ_b ∂L_b/∂w        Hg = Σ_b (∂²L_b/∂w²) g          over batches b, the same in both sums
    s = w ⊙ Hg                                              keep the largest, with their signs

To first order, removing weight j changes the gradient norm gᵀg by −2·s_j: what is kept is what the
gradient flow would miss most. (The authors write −w ⊙ Hg and remove the largest.) L_b is the mean
cross-entropy of the logits divided by `temperature`, which is not a mere factor: it makes the
predictions even. Gradient and Hessian are those of the prunable weights.

As in the authors' program the data are a few samples of every class, sorted by class and cut in
two, so each half has classes of its own, and batch norm uses the statistics of each half. Linear
layers keep the weights they have; the authors' program redraws them for scoring.
"""

from typing import Any, Literal

import torch
from pydantic import Field

from gemkit.core.limits import MAX_BATCHES
from gemkit.core.probe import Probe, Wanted, hessian_product
from gemkit.core.tensors import Tensors
from gemkit.parts.scores import MeasuredScores, Scores
from gemkit.plugins.markers import hookimpl


class Grasp(MeasuredScores):
    """How much the gradient norm would fall without a weight: w · Hg (GraSP)."""

    name = "grasp"

    temperature: float = Field(default=200.0, gt=0, description="divides the logits")
    mode: Literal["eval", "train"] = Field(
        default="train",
        description="batch norm by its running statistics, or by those of the batch",
    )
    absolute: bool = Field(
        default=False, description="rank by |w · Hg| instead: a variant, not the authors' method"
    )
    per_class: int = Field(
        default=10, ge=1, le=MAX_BATCHES, description="training samples of every class"
    )
    batches: int = Field(
        default=2, ge=1, le=MAX_BATCHES, description="parts that the samples are cut into"
    )

    def batches_wanted(self) -> Wanted:
        """Ask for a few samples of every class."""
        return Wanted(self.batches, self.per_class)

    def importance(self, probe: Probe) -> Tensors:
        """Return w · Hg: two passes over the batches, one for g and one for its derivative."""
        weights = probe.leaves()
        training = self.mode == "train"
        g = probe.gradient(weights, training=training, temperature=self.temperature)
        hg = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for turn in range(len(probe.batches)):
            loss = probe.loss(weights, turn, training=training, temperature=self.temperature)
            for name, product in hessian_product(loss, weights, g).items():
                hg[name] += product
        score = {name: weight.detach() * hg[name] for name, weight in weights.items()}
        return {name: value.abs() for name, value in score.items()} if self.absolute else score


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the score."""
    return [Grasp]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register GraSP."""
    return {
        "grasp": {
            "help": "GraSP: one shot, preserving the gradient flow (Wang et al. 2020)",
            "scores": "grasp",
        }
    }
