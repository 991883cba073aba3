"""Gem-Miner as it is usually written: the network computes its masks, and autograd sees them.

A contender for speed and memory, with the same mathematics as gemkit's `gem_miner`: weights stand
still, the rounding passes gradients straight through, the penalty is part of the loss, and scores
are cut to [0, 1] after every step.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from benchmarks.apart import Lap
from benchmarks.networks import Batch
from gemkit.core.prunable import prunable_names

PENALTY = 1e-4


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, score: Tensor) -> Tensor:  # noqa: ANN401 - torch's own signature
        return (score > 0.5).to(score.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ANN401
        return gradients[0]


class _Scored(nn.Module):
    """Weights under rounded scores, and under what is alive."""

    def __init__(self, weight: Tensor, density: float) -> None:
        super().__init__()
        weight.requires_grad_(False)
        self.score = nn.Parameter(torch.rand_like(weight))
        self.register_buffer("alive", (torch.rand_like(weight) < density).to(weight.dtype))

    def forward(self, weight: Tensor) -> Tensor:
        effective: Tensor = weight * _Round.apply(self.score) * self.alive
        return effective


def usual_step(model: nn.Module, batch: Batch, density: float) -> Lap:
    """Get a network ready whose scores learn through autograd."""
    model = model.to(memory_format=torch.channels_last).train().requires_grad_(False)
    scores = []
    for name in prunable_names(model, frozen=True):
        owner, _, attribute = name.rpartition(".")
        layer = model.get_submodule(owner)
        scored = _Scored(getattr(layer, attribute), density)
        parametrize.register_parametrization(layer, attribute, scored)
        scores.append(scored.score)
    optimizer = torch.optim.SGD(scores, lr=1e-3, momentum=0.9, fused=True)

    def step() -> None:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        penalty = torch.stack([score.square().sum() for score in scores]).sum()
        (loss + PENALTY * penalty).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for score in scores:
                score.clamp_(0, 1)

    return step
