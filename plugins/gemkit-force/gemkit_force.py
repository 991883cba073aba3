"""FORCE and Iter-SNIP (de Jorge et al., "Progressive Skeletonization", 2021) for gemkit.

Both prune in rounds along an exponential curve and measure |w · dL/dw| anew on what is left:

    m ← everything;  for t = 1 … T:  s = |w ⊙ ∂L(w ⊙ m)/∂(w ⊙ m)|,  m ← the top ρ^(t/T) of s

FORCE multiplies by the weight as it was drawn, so a pruned one may return while its gradient is
large. Iter-SNIP multiplies by what the network uses, where a pruned weight is zero and stays out.
gemkit never revives what it froze; so the rounds of FORCE take place inside `importance`, and the
one freeze afterwards is its last round. The rounds of Iter-SNIP are freezes of a schedule.
"""

from typing import Any, Literal

import torch
from pydantic import Field

from gemkit import MeasuredScores, Probe, Scores, Tensors, Wanted, hookimpl, select
from gemkit.probe import gradients


class Force(MeasuredScores):
    """Saliency |w · dL/dw| of the last of several rounds, between which weights may return."""

    name = "force"

    rounds: int = Field(default=10, ge=1, le=1000, description="rounds on the way to the density")
    batches: int = Field(default=1, ge=1, le=1000, description="fresh training batches a round")
    mode: Literal["train", "eval"] = Field(
        default="train", description="batch norm by statistics of the batch, or by its running ones"
    )

    def batches_wanted(self) -> Wanted:
        """Ask for fresh batches for every round."""
        return Wanted(self.rounds * self.batches)

    def importance(self, probe: Probe) -> Tensors:
        """Go through all rounds but the last, whose selection is the freeze itself."""
        effective = probe.weights
        for number in range(1, self.rounds):
            saliency = self._saliency(probe, effective, number)
            mask = select(saliency, probe.density ** (number / self.rounds), alive=probe.alive)
            effective = {name: weight * mask[name] for name, weight in probe.weights.items()}
        return self._saliency(probe, effective, self.rounds)

    def _saliency(self, probe: Probe, effective: Tensors, number: int) -> Tensors:
        """Measure |w · g| with w as drawn and g, summed over batches, in the network of a round."""
        leaves = {name: weight.detach().requires_grad_() for name, weight in effective.items()}
        turns = range((number - 1) * self.batches, number * self.batches)
        losses = [probe.loss(leaves, turn, training=self.mode == "train") for turn in turns]
        gradient = gradients(torch.stack(losses).sum(), leaves)
        return {name: (weight * gradient[name]).abs() for name, weight in probe.weights.items()}


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Offer the scores."""
    return [Force]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Offer both methods: many rounds inside the score, or one a freeze."""
    return {
        "force": {
            "help": "FORCE: saliency in rounds, between which weights return (de Jorge 2021)",
            "scores": "force",
        },
        "iter_snip": {
            "help": "Iter-SNIP: saliency measured anew at every one of ten freezes (de Jorge 2021)",
            "scores": {"name": "force", "rounds": 1},
            "schedule": {"name": "exponential", "rounds": 10},
        },
    }
