"""Linear layers that compute with their kept weights alone, where that is faster."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from gemkit.compaction.race import race
from gemkit.ticket import Ticket

Model = TypeVar("Model", bound=nn.Module)
_ENOUGH = 0.9
"""A sparse layer must take less than this fraction of the dense one's time to replace it."""
_TURNS = 9
_PLACE = 4
"""Bytes to say where a weight is."""


class SparseLinear(nn.Module):
    """A linear layer whose weight holds only what is not zero, row by row (CSR)."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        with warnings.catch_warnings():  # torch calls all of its CSR support a beta
            warnings.filterwarnings("ignore", message="Sparse CSR")
            weight = layer.weight.detach().to_sparse_csr()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Multiply, for any number of leading axes."""
        rows = (self.weight @ x.flatten(0, -2).T).T
        rows = rows if self.bias is None else rows + self.bias
        return rows.reshape(*x.shape[:-1], -1)


def sparse_where_faster(model: Model, images: Tensor) -> tuple[Model, list[str]]:
    """Return a copy with sparse linear layers wherever they beat the dense ones on these images.

    Both are raced on what the layer gets to see; the names of those replaced come along.
    """
    own = copy.deepcopy(model).eval()
    replaced = []
    for name, seen in _inputs(own, images).items():
        layer = own.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        sparse = SparseLinear(layer)
        times = race({"dense": _call(layer, seen), "sparse": _call(sparse, seen)}, _TURNS)
        if times["sparse"].ratio(times["dense"]) < _ENOUGH:
            own.set_submodule(name, sparse)
            replaced.append(name)
    return own, replaced


def _call(layer: nn.Module, seen: Tensor) -> Callable[[], object]:
    def call() -> Tensor:
        output: Tensor = layer(seen)
        return output

    return torch.no_grad()(call)


def _inputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return what every linear layer gets to see."""
    seen: dict[str, Tensor] = {}

    def note(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[name] = inputs[0]

    handles = [
        module.register_forward_pre_hook(partial(note, name))
        for name, module in model.named_modules()
        if type(module) is nn.Linear
    ]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return seen


def csr_bytes(ticket: Ticket) -> int:
    """Return how many bytes a ticket takes with its kept weights and their places alone.

    That is a number and its column for each, where rows begin, and everything not prunable.
    """
    total = 0
    for name, tensor in ticket.state.items():
        if name in ticket.mask:
            kept = int(ticket.mask[name].count_nonzero())
            total += kept * (tensor.element_size() + _PLACE) + (len(tensor) + 1) * _PLACE
        else:
            total += tensor.numel() * tensor.element_size()
    return total
