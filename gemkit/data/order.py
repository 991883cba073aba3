"""Which samples make up each batch of an epoch, and how each of them is augmented.

Every random number comes from the CPU and depends on (seed, epoch) alone, so that it does not
matter where images are kept, who decodes them, or how many processes share a batch.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gemkit.data.augment import draw
from gemkit.errors import DataError
from gemkit.tensors import generator


class Turn(NamedTuple):
    """One batch to be made: its samples, and the crop and flip of each, or None for as they are."""

    chosen: Tensor
    draws: Tensor | None


class Epoch(NamedTuple):
    """What `Source.batches` is asked for."""

    size: int
    seed: int | None = None
    epoch: int = 0
    augment: bool = False
    rank: int = 0
    world: int = 1

    def turns(self, samples: int, pad: int, *, flip: bool, device: torch.device) -> Iterator[Turn]:
        """Lay out an epoch of so many samples; what cannot be laid out is refused at once."""
        if self.size < 1 or not 0 <= self.rank < self.world:
            raise DataError(
                f"no batches of {self.size} samples for rank {self.rank} of {self.world}: the size "
                "must be at least 1, and ranks count from 0"
            )
        if self.augment and self.seed is None:
            raise DataError("augmentation draws random numbers: give batches() a seed")
        # Drawn and moved once an epoch, so that no batch waits for a transfer to the device.
        order = shuffled(samples, self.seed, self.epoch).to(device)
        draws = None
        if self.augment and self.seed is not None and (pad or flip):
            draws = draw(samples, pad, flip=flip, seed=self.seed, epoch=self.epoch).to(device)
        places = (
            slice(start + self.rank, min(start + self.size, samples), self.world)
            for start in range(0, samples, self.size)
        )
        return (Turn(order[at], None if draws is None else draws[:, at]) for at in places)


def shuffled(samples: int, seed: int | None, epoch: int) -> Tensor:
    """Return the order of the samples in an epoch; without a seed, as they are."""
    if seed is None:
        return torch.arange(samples)
    return torch.randperm(samples, generator=generator(seed, f"order {epoch}"))
