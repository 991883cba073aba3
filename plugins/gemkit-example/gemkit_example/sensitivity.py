"""Sensitivity: prune the weights that the loss depends on least (after SNIP, Lee et al. 2019)."""

from pydantic import Field

from gemkit import MeasuredScores, Wanted, hookimpl


class Sensitivity(MeasuredScores):
    """Sensitivity of the loss to each weight: |w · dL/dw| over a few batches."""

    name = "sensitivity"

    batches: int = Field(default=1, ge=1, le=1000, description="training batches to measure on")

    def batches_wanted(self):
        """Return how many batches to measure on."""
        return Wanted(self.batches)

    def importance(self, probe):
        """Return |w · dL/dw|, with gradients summed over all batches."""
        weights = probe.leaves()
        gradient = probe.gradient(weights)
        return {name: (weight * gradient[name]).abs() for name, weight in weights.items()}


@hookimpl
def gemkit_scores():
    """Register the score."""
    return [Sensitivity]


@hookimpl
def gemkit_pruners():
    """Register a pruner that uses it."""
    return {"sensitivity": {"help": "What the loss depends on most", "scores": "sensitivity"}}
