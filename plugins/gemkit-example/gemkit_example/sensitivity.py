"""Sensitivity: prune the weights on which the loss depends least (after SNIP, Lee et al. 2019)."""

from pydantic import Field

from gemkit import MeasuredScores, Wanted, hookimpl


class Sensitivity(MeasuredScores):
    """How strongly the loss depends on a weight: |w · dL/dw| over a few batches."""

    name = "sensitivity"

    batches: int = Field(default=1, ge=1, le=1000, description="training batches to measure on")

    def batches_wanted(self):
        """Ask for the batches."""
        return Wanted(self.batches)

    def importance(self, probe):
        """Return |w · dL/dw|, with the gradients of all batches summed up."""
        weights = probe.leaves()
        gradient = probe.gradient(weights)
        return {name: (weight * gradient[name]).abs() for name, weight in weights.items()}


@hookimpl
def gemkit_scores():
    """Offer the scores."""
    return [Sensitivity]


@hookimpl
def gemkit_pruners():
    """Offer a pruner made with them."""
    return {"sensitivity": {"help": "What the loss depends on most", "scores": "sensitivity"}}
