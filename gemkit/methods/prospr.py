"""ProsPr (Alizadeh et al., "Prospect pruning: finding trainable weights at initialization using
meta-gradients", 2022).

    w_0 = c ⊙ w                                     v_0 = 0
    v_{k+1} = μ v_k + ∂L_k/∂w(w_k)                  w_{k+1} = w_k − η v_{k+1}      k = 0 … M−1
    s = |∂L_M(w_M)/∂c| at c = 1                     keep the largest, over the whole network

M is `steps`, η is `lr`, μ is `momentum`. L_k is the mean cross-entropy of batch k, a new one in
every step and one more for the last loss. The mask c is applied once, at the start. Every parameter
that is trained takes part in the steps, also biases and norms; frozen ones stand still. Batch norm
uses the statistics of the batch. With M = 0 this is SNIP in training mode.

The derivative runs backwards through the steps, where H_k = ∂²L_k/∂w²(w_k):

    λ_M = ∂L_M/∂w(w_M)                              ν_{M+1} = 0
    ν_{k+1} = μ ν_{k+2} − η λ_{k+1}                 λ_k = λ_{k+1} + H_k ν_{k+1}    k = M−1 … 0
    s = |w ⊙ λ_0|

It needs the weights of every step but the graph of only one at a time, so memory hardly grows with
the number of steps. `first_order` leaves out the curvature: s = |w ⊙ λ_M|.

The authors' program differs from their formula where there is momentum: it cuts the graph at the
first momentum buffer, so H_0 is lost. `compat` does the same. The defaults are those of their
command line; their README's example has lr 0.5 and momentum 0.9.
"""

from typing import Any

import torch
from pydantic import Field

from gemkit.core.probe import Probe, Wanted, gradients, hessian_product
from gemkit.core.tensors import Tensors
from gemkit.parts.scores import MeasuredScores, Scores
from gemkit.plugins.markers import hookimpl


class Prospr(MeasuredScores):
    """How much the loss after a few training steps would feel the loss of a weight (ProsPr)."""

    name = "prospr"

    steps: int = Field(default=3, ge=0, le=1000, description="training steps to look ahead (M)")
    lr: float = Field(default=0.1, gt=0, description="learning rate of these steps (η)")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="momentum of these steps (μ)")
    first_order: bool = Field(default=False, description="leave out the curvature: faster")
    compat: bool = Field(
        default=False,
        description="as the authors' program: no curvature of the first step if there is momentum",
    )

    def batches_wanted(self) -> Wanted:
        """Ask for a batch for every step, and one for the loss after them."""
        return Wanted(self.steps + 1)

    def importance(self, probe: Probe) -> Tensors:
        """Return |w · ∂L_M/∂c|."""
        path = self._train(probe)
        final = path.pop()
        change = gradients(probe.loss(final, self.steps, training=True), final)
        if not self.first_order:
            self._go_back_(change, path, probe)
        return {name: (weight * change[name]).abs() for name, weight in probe.weights.items()}

    def _train(self, probe: Probe) -> list[Tensors]:
        """Take the steps forwards, and return the parameters before each and after the last."""
        path = [probe.leaves(rest=True)]
        rates = self._rates(probe, path[0])
        velocity = _zeros(path[0])
        for step in range(self.steps):
            now = path[-1]
            slopes = gradients(probe.loss(now, step, training=True), now)
            velocity = {name: self.momentum * v + slopes[name] for name, v in velocity.items()}
            path.append(
                {
                    name: (value.detach() - rates[name] * velocity[name]).requires_grad_()
                    for name, value in now.items()
                }
            )
        return path

    def _rates(self, probe: Probe, like: Tensors) -> dict[str, float]:
        """Return the learning rate of every parameter: 0 for what is frozen."""
        return {name: self.lr * probe.model.get_parameter(name).requires_grad for name in like}

    def _go_back_(self, change: Tensors, path: list[Tensors], probe: Probe) -> None:
        """Carry the derivative by the last parameters (λ) back to the first, in place."""
        pull = _zeros(change)  # ν
        rates = self._rates(probe, change)
        first = 1 if self.compat and self.momentum else 0
        for step in reversed(range(first, self.steps)):
            pull = {
                name: self.momentum * v - rates[name] * change[name] for name, v in pull.items()
            }
            loss = probe.loss(path[step], step, training=True)
            for name, product in hessian_product(loss, path[step], pull).items():
                change[name] += product


def _zeros(like: Tensors) -> Tensors:
    return {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in like.items()}


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the score."""
    return [Prospr]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register ProsPr."""
    return {
        "prospr": {
            "help": "ProsPr: one shot by the loss after a few steps (Alizadeh et al. 2022)",
            "scores": "prospr",
        }
    }
