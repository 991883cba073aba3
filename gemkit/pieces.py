"""Layers in pieces that fit the cache, each one-dimensional and as it lies in memory."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

PIECE = 1 << 18
"""Entries of a piece: its weights, scores, gradients and momentum stay in the cache together."""


class Cut:
    """Where a layer is cut; tensors of its shape that lie in memory alike fall apart alike."""

    def __init__(self, like: Tensor) -> None:
        order = sorted(range(like.ndim), key=like.stride, reverse=True)
        dense = like.permute(order).is_contiguous()
        self._order = order if dense else None
        """Its dimensions as they lie in memory; a tensor with gaps stays in one piece."""

    def fits(self, tensor: Tensor) -> bool:
        """Tell whether a tensor of the layer's shape lies in memory as this cut needs it."""
        return self._order is None or tensor.permute(self._order).is_contiguous()

    def split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return the pieces of a tensor that fits, sharing its memory."""
        if self._order is None:
            return (tensor,)
        return torch.split(tensor.permute(self._order).view(-1), PIECE)


class Piece(NamedTuple):
    """What belongs to some entries of a layer, which go through a step together."""

    score: nn.Parameter
    weight: Tensor
    live: Tensor
    alive: Tensor


def wear_(weight: Tensor, live: Tensor, mask: Tensor) -> None:
    """Write the living weights under a mask into the network's own."""
    if mask.dtype == torch.bool:  # torch is several times slower when types mix in a product
        mask = weight.copy_(mask.view(torch.uint8))
    torch.mul(live, mask, out=weight)
