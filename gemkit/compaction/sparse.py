"""Sparse linear layers (CSR), where they are faster than dense ones."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from gemkit.compaction.timing import time_interleaved
from gemkit.tickets.ticket import Ticket

Model = TypeVar("Model", bound=nn.Module)
_MAX_RATIO = 0.9
"""A sparse layer must take less than this fraction of the dense layer's time."""
_TURNS = 9
_INDEX = 4
"""Bytes of an index."""


class SparseLinear(nn.Module):
    """A linear layer with a sparse weight in CSR format."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        with warnings.catch_warnings():  # torch warns that its CSR support is in beta
            warnings.filterwarnings("ignore", message="Sparse CSR")
            weight = layer.weight.detach().to_sparse_csr()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer, for any number of leading axes."""
        rows = (self.weight @ x.flatten(0, -2).T).T
        rows = rows if self.bias is None else rows + self.bias
        return rows.reshape(*x.shape[:-1], -1)


def sparse_where_faster(model: Model, images: Tensor) -> tuple[Model, list[str]]:
    """Return a copy with sparse linear layers where they are faster, and the names of these layers.

    Each layer is timed on its input for these images.
    """
    result = copy.deepcopy(model).eval()
    replaced = []
    for name, x in _inputs(result, images).items():
        layer = result.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        sparse = SparseLinear(layer)
        times = time_interleaved({"dense": _call(layer, x), "sparse": _call(sparse, x)}, _TURNS)
        if times["sparse"].ratio(times["dense"]) < _MAX_RATIO:
            result.set_submodule(name, sparse)
            replaced.append(name)
    return result, replaced


def _call(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    def call() -> Tensor:
        output: Tensor = layer(x)
        return output

    return torch.no_grad()(call)


def _inputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the input of every linear layer."""
    recorded: dict[str, Tensor] = {}

    def record(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        recorded[name] = inputs[0]

    handles = [
        module.register_forward_pre_hook(partial(record, name))
        for name, module in model.named_modules()
        if type(module) is nn.Linear
    ]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return recorded


def csr_bytes(ticket: Ticket) -> int:
    """Return the size of a ticket with its prunable weights in CSR format, in bytes."""
    total = 0
    for name, tensor in ticket.state.items():
        if name in ticket.mask:
            kept = int(ticket.mask[name].count_nonzero())
            total += kept * (tensor.element_size() + _INDEX) + (len(tensor) + 1) * _INDEX
        else:
            total += tensor.numel() * tensor.element_size()
    return total
