"""How much a network computes: multiplications of its convolutions and linear layers."""

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gemkit.compaction.sparse import SparseLinear
from gemkit.compaction.tracing import Shape
from gemkit.probe import in_mode

_COUNTED = (nn.Conv2d, nn.Linear, SparseLinear)


class Work(NamedTuple):
    """Multiplications for one image: all of them, and those with a weight that is not zero."""

    all: int
    useful: int


def work(model: nn.Module, shape: Shape) -> Work:
    """Count what the layers of a network do to one image, by letting it look at one."""
    counts: list[Work] = []

    def count(layer: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        times = output.numel() // len(weight)  # every weight meets every pixel, or row, once
        if isinstance(layer, SparseLinear):
            counts.append(Work(times * weight._nnz(), times * weight._nnz()))
        else:
            counts.append(Work(times * weight.numel(), times * int(weight.count_nonzero())))

    layers = [layer for layer in model.modules() if isinstance(layer, _COUNTED)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    own = next(chain(model.parameters(), model.buffers()))
    with in_mode(model, training=False), torch.no_grad():
        model(torch.zeros((1, *shape), dtype=own.dtype, device=own.device))
    for handle in handles:
        handle.remove()
    return Work(sum(one.all for one in counts), sum(one.useful for one in counts))
