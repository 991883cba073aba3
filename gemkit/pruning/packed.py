"""Compact storage of weights that no step reads: one bit each if a layer holds only +c and −c."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """The weights of a layer, for tickets and checkpoints.

    The steps of a search have their own copy of the living weights. A second copy of all weights
    would cost a number per weight.
    """

    values: Tensor | np.ndarray
    size: float

    @classmethod
    def of(cls, weight: Tensor) -> "Packed":
        """Store signs if all magnitudes are equal, and otherwise a reference to the weights.

        Weights on a device are not packed: the comparison would wait for it.
        """
        if weight.numel() and weight.is_cpu:
            low, high = (float(size) for size in weight.abs().aminmax())
            if 0 < low == high < math.inf:
                return cls(np.packbits((weight < 0).numpy()), high)
        return cls(weight, math.nan)

    def unpacked(self, like: Tensor) -> Tensor:
        """Return the weights in this shape, type and layout. Do not write to them."""
        if isinstance(self.values, Tensor):
            return self.values
        negative = torch.from_numpy(np.unpackbits(self.values, count=like.numel()))
        signs = torch.empty_like(like).copy_(negative.view(like.shape)).mul_(-2).add_(1)
        return signs.mul_(self.size)
