"""Count the multiplications (MACs) of convolutions and linear layers."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gemkit.compaction.sparse import SparseLinear
from gemkit.compaction.tracing import Shape
from gemkit.core.probe import in_mode
from gemkit.models.check import blank_inputs

_COUNTED = (nn.Conv1d, nn.Conv2d, nn.Linear, SparseLinear)


class Macs(NamedTuple):
    """Multiplications for one image: all of them, and those with nonzero weights."""

    total: int
    nonzero: int


def count_macs(model: nn.Module, shape: Shape) -> Macs:
    """Count the multiplications for one image in a forward pass."""
    counts: list[Macs] = []

    def count(layer: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        uses = output.numel() // len(weight)  # each weight is used once per output pixel or row
        if isinstance(layer, SparseLinear):
            counts.append(Macs(uses * weight._nnz(), uses * weight._nnz()))
        else:
            counts.append(Macs(uses * weight.numel(), uses * int(weight.count_nonzero())))

    layers = [layer for layer in model.modules() if isinstance(layer, _COUNTED)]
    inputs = blank_inputs(model, shape, 1)  # before the hooks: it may try the network
    handles = [layer.register_forward_hook(count) for layer in layers]
    with in_mode(model, training=False), torch.no_grad():
        model(inputs)
    for handle in handles:
        handle.remove()
    return Macs(sum(macs.total for macs in counts), sum(macs.nonzero for macs in counts))
