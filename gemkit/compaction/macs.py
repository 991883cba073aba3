"""Count the multiplications (MACs) of convolutions and linear layers."""

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gemkit.compaction.sparse import SparseLinear
from gemkit.compaction.tracing import Shape
from gemkit.core.probe import in_mode

_COUNTED = (nn.Conv2d, nn.Linear, SparseLinear)


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
    handles = [layer.register_forward_hook(count) for layer in layers]
    like = next(chain(model.parameters(), model.buffers()))
    with in_mode(model, training=False), torch.no_grad():
        model(torch.zeros((1, *shape), dtype=like.dtype, device=like.device))
    for handle in handles:
        handle.remove()
    return Macs(sum(macs.total for macs in counts), sum(macs.nonzero for macs in counts))
