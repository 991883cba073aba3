"""Layers in pieces that fit the cache, each one-dimensional and as it lies in memory."""

import numpy as np
import torch
from torch import Tensor

PIECE = 1 << 19
"""Entries of a piece: its weights, scores, gradients and momentum stay in the cache together."""


class Cut:
    """Where a layer is cut; tensors of its shape that lie in memory alike fall apart alike."""

    def __init__(self, like: Tensor) -> None:
        order = sorted(range(like.ndim), key=like.stride, reverse=True)
        dense = like.permute(order).is_contiguous()
        self._order = order if dense else None
        """Its dimensions as they lie in memory; a tensor with gaps stays in one piece."""
        self._shape = tuple(like.shape)

    def fits(self, tensor: Tensor) -> bool:
        """Tell whether a tensor of the layer's shape lies in memory as this cut needs it."""
        return self._order is None or tensor.permute(self._order).is_contiguous()

    @property
    def flattens(self) -> bool:
        """Whether the layer can be seen in one dimension."""
        return self._order is not None

    def flat(self, tensor: Tensor) -> Tensor:
        """Return a tensor that fits in one dimension, as it lies in memory, which it shares."""
        assert self._order is not None, "a tensor with gaps has no flat form"
        return tensor.permute(self._order).view(-1)

    def split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return the pieces of a tensor that fits, sharing its memory."""
        return torch.split(self.flat(tensor), PIECE) if self.flattens else (tensor,)

    def c_order(self, positions: np.ndarray) -> np.ndarray:
        """Turn positions in the flat form into positions in C order."""
        assert self._order is not None
        axes = np.unravel_index(positions, [self._shape[axis] for axis in self._order])
        by_axis = dict(zip(self._order, axes, strict=True))
        return np.ravel_multi_index([by_axis[axis] for axis in sorted(by_axis)], self._shape)
