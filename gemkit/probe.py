"""What a score may look at: the weights, what is still alive, batches, and a harmless forward."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gemkit.tensors import Tensors

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Probe:
    """A network held still for measuring; nothing done through it changes the model.

    `weights` are the prunable weights as the network uses them now (pruned ones are zero) and
    `alive` tells which may still be used. `batches` are all meant to be used, in order.
    `rng` is the score's own stream of random numbers. `scores` is empty unless they are learned.
    """

    model: nn.Module
    weights: Tensors
    alive: Tensors
    batches: Sequence[Batch] = ()
    rng: torch.Generator = field(default_factory=torch.Generator)
    scores: Tensors = field(default_factory=dict)

    def forward(self, weights: Tensors, x: Tensor, *, training: bool = False) -> Tensor:
        """Run the model with other prunable weights, on copies of its buffers.

        Differentiable any number of times in `weights`. `training` chooses batch statistics for
        normalization layers (and dropout) as `model.train()` would.
        """
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        with in_mode(self.model, training=training):
            output: Tensor = functional_call(self.model, {**buffers, **weights}, (x,))
        return output


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Set training or evaluation mode, and give every submodule its own mode back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
