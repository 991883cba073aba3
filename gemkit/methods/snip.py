"""SNIP (Lee et al., "SNIP: Single-shot network pruning based on connection sensitivity", 2019).

    s = |∂L(c ⊙ w)/∂c| at c = 1  =  |w ⊙ ∂L/∂w|          keep the largest, over the whole network

L is the mean cross-entropy of a training batch, without augmentation or weight decay. Gradients of
several batches are summed with their signs before the absolute value is taken.

The weights are those the ticket begins with; the authors' program scores another random draw than
the one it trains. It runs batch norm in inference mode, where the running statistics of a fresh
network are 0 and 1, so nothing is normalized: that is `mode="eval"`. `mode="train"` uses the
statistics of the batch, as many later papers do, and ranks rather differently. Scores are not
divided by their sum, which would not change the ranking.
"""

from typing import Any, Literal

from pydantic import Field

from gemkit.core.limits import MAX_BATCHES
from gemkit.core.probe import Probe, Wanted
from gemkit.core.tensors import Tensors
from gemkit.parts.scores import MeasuredScores, Scores
from gemkit.plugins.markers import hookimpl


class Snip(MeasuredScores):
    """How much the loss would feel the loss of a weight: |w · ∂L/∂w| (SNIP)."""

    name = "snip"

    mode: Literal["eval", "train"] = Field(
        default="eval", description="batch norm by its running statistics, or by those of the batch"
    )
    batches: int = Field(
        default=1, ge=1, le=MAX_BATCHES, description="training batches to measure on"
    )

    def batches_wanted(self) -> Wanted:
        """Ask for ordinary batches."""
        return Wanted(self.batches)

    def importance(self, probe: Probe) -> Tensors:
        """Return |w · ∂L/∂w|, the gradient summed over the batches."""
        weights = probe.leaves()
        gradient = probe.gradient(weights, training=self.mode == "train")
        return {name: (weight * gradient[name]).abs() for name, weight in weights.items()}


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the score."""
    return [Snip]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register SNIP."""
    return {
        "snip": {
            "help": "SNIP: one shot by the sensitivity of the loss (Lee et al. 2019)",
            "scores": "snip",
        }
    }
