"""Choose the samples of each batch of an epoch, and how each is augmented.

All random numbers are drawn on the CPU and depend on (seed, epoch) alone, so batches are the same
on every device, in memory or streamed, and for any number of processes.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gemkit.core.errors import DataError
from gemkit.core.tensors import generator
from gemkit.data.augment import draw


class SampledBatch(NamedTuple):
    """The sample indices of one batch, and the crop and flip of each (None to not augment)."""

    indices: Tensor
    draws: Tensor | None


class EpochSampler(NamedTuple):
    """The arguments of `Source.batches`."""

    size: int
    seed: int | None = None
    epoch: int = 0
    augment: bool = False
    rank: int = 0
    world: int = 1

    def batches(
        self, samples: int, pad: int, *, flip: bool, device: torch.device
    ) -> Iterator[SampledBatch]:
        """Iterate over the batches of an epoch; invalid arguments are refused immediately."""
        if self.size < 1 or not 0 <= self.rank < self.world:
            raise DataError(
                f"no batches of {self.size} samples for rank {self.rank} of {self.world}: the size "
                "must be at least 1, and ranks count from 0"
            )
        if self.augment and self.seed is None:
            raise DataError("augmentation needs random numbers; give batches() a seed")
        # Drawn and moved once per epoch, so that no batch waits for a transfer to the device.
        order = shuffled(samples, self.seed, self.epoch).to(device)
        draws = None
        if self.augment and self.seed is not None and (pad or flip):
            draws = draw(samples, pad, flip=flip, seed=self.seed, epoch=self.epoch).to(device)
        slices = (
            slice(start + self.rank, min(start + self.size, samples), self.world)
            for start in range(0, samples, self.size)
        )
        return (SampledBatch(order[at], None if draws is None else draws[:, at]) for at in slices)


def shuffled(samples: int, seed: int | None, epoch: int) -> Tensor:
    """Return the order of the samples in an epoch; without a seed, they are not shuffled."""
    if seed is None:
        return torch.arange(samples)
    return torch.randperm(samples, generator=generator(seed, f"order {epoch}"))
