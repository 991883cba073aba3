"""What the parts of a recipe see in a step: the clock, the mask, and their own state."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gemkit.core.tensors import Tensors, total


def _no_selection(view: Tensors) -> Tensors:
    raise NotImplementedError("there is no freeze here whose budget could be kept")


def _no_dense_network(inputs: Tensor) -> Tensor:
    raise NotImplementedError("there is no dense network here to compare with")


@dataclass
class Now:
    """The clock of a search, the mask in use, and the state of the part that is called.

    Numbers that change in every step are 0-dimensional tensors on the device of the weights:
    nothing is read back from it, and a compiled update is compiled once. Change nothing but the
    tensors of `state`, in place.
    """

    step: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Optimizer steps so far; an update counts the present one, an objective does not."""
    steps: int = 1
    """Optimizer steps of the whole search."""
    target: float = 0.05
    """The final density of the search."""
    alive: Tensors = field(default_factory=dict)
    """Which weights are not pruned for good."""
    gates: Tensors = field(default_factory=dict)
    """What weights were multiplied by in the last forward pass, if a part needs it."""
    state: Tensors = field(default_factory=dict)
    """The part's own state: what `init_state` returned, as changed by the part."""
    rng: torch.Generator = field(default_factory=torch.Generator)
    """Random numbers, on the CPU; a resumed search draws the same ones."""
    select: Callable[[Tensors], Tensors] = _no_selection
    """Keeps the budget of the last freeze: the highest entries of a view, by the recipe's structure
    and allocation, as boolean masks with exact counts."""
    dense: Callable[[Tensor], Tensor] = _no_dense_network
    """Computes the outputs of the network without its mask, without gradients."""

    @property
    def progress(self) -> Tensor:
        """The fraction of the search that is done, from 0 to 1."""
        return self.step / max(1, self.steps)

    @property
    def density(self) -> Tensor:
        """The density of the mask in the last forward pass: the mean of `gates`."""
        if not self.gates:
            raise ValueError("there are no gates here; a regularizer sets needs_density = True")
        sums = torch._foreach_norm([gate.float() for gate in self.gates.values()], 1)
        return torch.stack(list(sums)).sum() / max(1, total(self.gates))
