"""How much a network computes: multiplications of its convolutions and linear layers."""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gemkit.compaction.sparse import SparseLinear
from gemkit.compaction.tracing import Shape

_COUNTED = (nn.Conv2d, nn.Linear, SparseLinear)


class Work(NamedTuple):
    """Multiplications for one image: all of them, and those with a weight that is not zero."""

    all: int
    useful: int


def work(model: nn.Module, shape: Shape) -> Work:
    """Count what the layers of a network do to one image, by letting it look at one."""
    own = copy.deepcopy(model).cpu().eval()
    counts: list[tuple[int, int]] = []

    def count(layer: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, _COUNTED)
        weight = layer.weight.detach()
        times = output.numel() // len(weight)  # every weight meets every pixel, or row, once
        if isinstance(layer, SparseLinear):
            counts.append((times * weight._nnz(), times * weight._nnz()))
        else:
            counts.append((times * weight.numel(), times * int(weight.count_nonzero())))

    for layer in own.modules():
        if isinstance(layer, _COUNTED):
            layer.register_forward_hook(count)
    parameter = next(own.parameters())
    with torch.no_grad():
        own(parameter.new_zeros((1, *shape)))
    return Work(sum(every for every, _ in counts), sum(useful for _, useful in counts))
