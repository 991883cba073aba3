"""Weights at rest: kept as they are, or one bit each where a layer holds nothing but +c and −c."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """The weights of a layer, which no step reads.

    A search keeps the living weights for its steps. The pruned ones are only needed for tickets
    and checkpoints, so a whole copy of them would cost a number per weight for nothing.
    """

    values: Tensor | np.ndarray
    size: float

    @classmethod
    def of(cls, weight: Tensor) -> "Packed":
        """Keep the signs where all magnitudes are equal, and else a reference to the weights.

        On a device that would mean to wait for every layer, and weights are kept as they are.
        """
        if weight.numel() and weight.is_cpu:
            low, high = (float(size) for size in weight.abs().aminmax())
            if 0 < low == high < math.inf:
                return cls(np.packbits((weight < 0).cpu().numpy()), high)
        return cls(weight, math.nan)

    def unpacked(self, like: Tensor) -> Tensor:
        """Return the weights in this shape, type and layout. Do not write to them."""
        if isinstance(self.values, Tensor):
            return self.values
        negative = torch.from_numpy(np.unpackbits(self.values, count=like.numel()))
        signs = torch.empty_like(like).copy_(negative.view(like.shape)).mul_(-2).add_(1)
        return signs.mul_(self.size)
