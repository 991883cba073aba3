"""FORCE and Iter-SNIP (de Jorge et al., "Progressive Skeletonization", 2021) for gemkit.

Both prune in rounds along an exponential curve and measure |w · dL/dw| again in every round:

    m ← 1;  for t = 1 … T:  s = |w ⊙ ∂L(w ⊙ m)/∂(w ⊙ m)|,  m ← the top ρ^(t/T) of s

FORCE multiplies the gradient by the original weight, so a pruned weight can return. Iter-SNIP
multiplies by the effective weight, which stays zero once pruned. gemkit never revives a frozen
weight, so the rounds of FORCE run inside `importance`, and the single freeze is its last round. The
rounds of Iter-SNIP are freezes of a schedule.
"""

from typing import Any, Literal

import torch
from pydantic import Field

from gemkit import MeasuredScores, Probe, Scores, Tensors, Wanted, hookimpl, select
from gemkit.core.probe import gradients


class Force(MeasuredScores):
    """Saliency |w · dL/dw| in the last of several rounds; weights may return between rounds."""

    name = "force"

    rounds: int = Field(default=10, ge=1, le=1000, description="rounds to reach the density")
    batches: int = Field(default=1, ge=1, le=1000, description="new training batches per round")
    mode: Literal["train", "eval"] = Field(
        default="train", description="batch norm uses batch statistics, or running ones"
    )

    def batches_wanted(self) -> Wanted:
        """Return the number of batches of all rounds."""
        return Wanted(self.rounds * self.batches)

    def importance(self, probe: Probe) -> Tensors:
        """Run all rounds but the last, whose selection is the freeze."""
        effective = probe.weights
        for number in range(1, self.rounds):
            saliency = self._saliency(probe, effective, number)
            mask = select(saliency, probe.density ** (number / self.rounds), alive=probe.alive)
            effective = {name: weight * mask[name] for name, weight in probe.weights.items()}
        return self._saliency(probe, effective, self.rounds)

    def _saliency(self, probe: Probe, effective: Tensors, number: int) -> Tensors:
        """Return |w · g| with the original w and the gradient g of this round's network."""
        leaves = {name: weight.detach().requires_grad_() for name, weight in effective.items()}
        turns = range((number - 1) * self.batches, number * self.batches)
        losses = [probe.loss(leaves, turn, training=self.mode == "train") for turn in turns]
        gradient = gradients(torch.stack(losses).sum(), leaves)
        return {name: (weight * gradient[name]).abs() for name, weight in probe.weights.items()}


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the score."""
    return [Force]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register both methods: many rounds in one freeze, or one round per freeze."""
    return {
        "force": {
            "help": "FORCE: saliency in rounds, pruned weights may return (de Jorge 2021)",
            "scores": "force",
        },
        "iter_snip": {
            "help": "Iter-SNIP: saliency measured at each of ten freezes (de Jorge 2021)",
            "scores": {"name": "force", "rounds": 1},
            "schedule": {"name": "exponential", "rounds": 10},
        },
    }
