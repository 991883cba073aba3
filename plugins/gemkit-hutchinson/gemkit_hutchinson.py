"""Second-order scores at initialization for gemkit: the diagonals of Hutchinson and of Fisher.

Gollini Navarrete et al., "What Scalable Second-Order Information Knows for Pruning at
Initialization" (arXiv 2502.11450). With the gradient g = ∂L/∂θ and the Hessian H = ∂²L/∂θ²:

    hutchinson   h = mean of z ⊙ Hz over random signs z; its expectation is the diagonal of H
    fisher       h = mean of g_i² over samples i: the diagonal of the empirical Fisher matrix

    taylor       |θ ⊙ g + ½ θ² ⊙ h|      the paper's HTS and FTS
    pruner       ½ θ² ⊙ h                HP and FP: optimal brain damage
    diagonal     h                       HD and FD

The largest stay, with their signs. L is the mean cross-entropy of a few samples of every class, its
logits divided by `temperature`: 200 for Hutchinson and 1 for Fisher, as in the authors' program.

Batch norm uses running statistics, which say nothing in a new network. So copies of them are
updated first, in `warmup` forward passes over the samples in training mode. (The authors' program
passes over all training data once.) The model keeps its own. Signs are drawn for every batch, so
`batches` as high as the number of samples is what the authors' configurations do. Gradients of
samples are computed one at a time: their memory does not grow with the number of samples.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from gemkit import MeasuredScores, Probe, Scores, Tensors, Wanted, hookimpl
from gemkit.core.errors import ImportanceError
from gemkit.core.probe import gradients, hessian_product


class SecondOrder(MeasuredScores):
    """Scores of a gradient g and a diagonal h, after a warm-up of batch norm."""

    variant: Literal["taylor", "pruner", "diagonal"] = Field(
        default="taylor", description="|θ·g + ½θ²·h|, ½θ²·h, or h"
    )
    temperature: float = Field(gt=0, description="divides the logits")
    per_class: int = Field(default=10, ge=1, le=10_000, description="samples of every class")
    batches: int = Field(
        default=1, ge=1, le=100_000, description="parts that the samples are cut into"
    )
    warmup: int = Field(
        default=50, ge=0, le=10_000, description="forward passes that update batch norm first"
    )

    def batches_wanted(self) -> Wanted:
        """Ask for a few samples of every class."""
        return Wanted(self.batches, self.per_class)

    def importance(self, probe: Probe) -> Tensors:
        """Return the chosen combination of θ, g and h."""
        if not probe.batches:
            raise ImportanceError("this score is measured on data: give it at least one batch")
        weights = probe.leaves()
        g, h = self._derivatives(probe, weights, self._statistics(probe, weights))
        if self.variant == "diagonal":
            return h
        half = {name: weight.detach().square() * h[name] / 2 for name, weight in weights.items()}
        if self.variant == "pruner":
            return half
        return {name: (weights[name].detach() * g[name] + half[name]).abs() for name in weights}

    @torch.no_grad()
    def _statistics(self, probe: Probe, weights: Tensors) -> Tensors:
        """Return the buffers of the model as training forward passes would leave them."""
        dtype = next(iter(weights.values())).dtype
        buffers = {
            name: own.to(dtype if own.is_floating_point() else own.dtype, copy=True)
            for name, own in probe.model.named_buffers()
        }
        # What a forward pass is given in place of buffers, batch norm updates in place.
        for turn in range(self.warmup * len(probe.batches) if buffers else 0):
            probe.loss({**weights, **buffers}, turn, training=True)
        return buffers

    def _loss(self, probe: Probe, weights: Tensors, statistics: Tensors, turn: int) -> Tensor:
        return probe.loss({**weights, **statistics}, turn, temperature=self.temperature)

    @abstractmethod
    def _derivatives(
        self, probe: Probe, weights: Tensors, statistics: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Return g and h."""


class Hutchinson(SecondOrder):
    """The loss around the weights, to second order, by Hutchinson's diagonal of the Hessian."""

    name = "hutchinson"

    temperature: float = Field(default=200.0, gt=0, description="divides the logits")
    draws: int = Field(default=10, ge=1, le=100_000, description="random signs for every batch")

    def _derivatives(
        self, probe: Probe, weights: Tensors, statistics: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Return the gradient, and the mean of z ⊙ Hz over all draws."""
        g, h = _zeros(weights), _zeros(weights)
        samples = sum(len(images) for images, _ in probe.batches)
        for turn, (images, _) in enumerate(probe.batches):
            share = len(images) / samples
            loss = self._loss(probe, weights, statistics, turn)
            _add_(g, gradients(loss, weights), share)
            for _ in range(self.draws):
                z = {name: _signs(weight, probe.rng) for name, weight in weights.items()}
                loss = self._loss(probe, weights, statistics, turn)
                product = hessian_product(loss, weights, z)
                _add_(h, {name: z[name] * product[name] for name in z}, share / self.draws)
        return g, h


class Fisher(SecondOrder):
    """The loss around the weights, to second order, by the diagonal of the Fisher matrix."""

    name = "fisher"

    temperature: float = Field(default=1.0, gt=0, description="divides the logits")

    def _derivatives(
        self, probe: Probe, weights: Tensors, statistics: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Return the mean of the gradients of all samples, and that of their squares."""
        samples = [
            sample
            for images, labels in probe.batches
            for sample in zip(torch.split(images, 1), torch.split(labels, 1), strict=True)
        ]
        single = replace(probe, batches=samples)
        g, h = _zeros(weights), _zeros(weights)
        for turn in range(len(samples)):
            own = gradients(self._loss(single, weights, statistics, turn), weights)
            _add_(g, own, 1 / len(samples))
            _add_(h, {name: value.square() for name, value in own.items()}, 1 / len(samples))
        return g, h


def _zeros(weights: Tensors) -> Tensors:
    return {name: torch.zeros_like(weight.detach()) for name, weight in weights.items()}


def _add_(totals: Tensors, terms: Tensors, factor: float) -> None:
    for name, total in totals.items():
        total.add_(terms[name], alpha=factor)


def _signs(like: Tensor, rng: torch.Generator) -> Tensor:
    """Draw +1 and −1, on the CPU, so that a seed gives the same on every device."""
    return torch.randint(2, like.shape, generator=rng).mul_(2).sub_(1).to(like)


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the scores."""
    return [Hutchinson, Fisher]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register both methods."""
    return {
        "hutchinson": {
            "help": "Hutchinson-Taylor sensitivity: one shot, to second order (Gollini 2025)",
            "scores": "hutchinson",
        },
        "fisher": {
            "help": "Fisher-Taylor sensitivity: one shot, by squared gradients (Gollini 2025)",
            "scores": "fisher",
        },
    }
