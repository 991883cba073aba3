"""What training needs from a network."""

from typing import Any, Protocol

import torch
from torch import nn

from gemkit.core.tensors import Tensors
from gemkit.parts.now import Now
from gemkit.training.plan import Plan


class TrainedNet(Protocol):
    """A model, what the optimizer trains of it, and how a step is taken."""

    @property
    def model(self) -> nn.Module:
        """The network itself."""
        ...

    @property
    def mask(self) -> Tensors:
        """The current mask."""
        ...

    @property
    def scores(self) -> Tensors:
        """The learned scores; empty if there are none."""
        ...

    @property
    def strength(self) -> float | None:
        """The λ of the penalty on learned scores, or None."""
        ...

    def trainable(self) -> list[nn.Parameter]:
        """List what the optimizer trains."""
        ...

    def groups(self, plan: Plan) -> list[dict[str, Any]]:
        """Return what the optimizer trains, in groups with their own settings."""
        ...

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take one optimizer step with the gradients of a backward pass."""
        ...

    @property
    def now(self) -> Now:
        """Clock, mask and state, for an objective."""
        ...

    def compile_(self) -> bool:
        """Compile the update at its first call, and return True; return False if it cannot be."""
        ...
