"""Data sets held as tensors, augmented and normalised batch by batch.

Nothing is done image by image, so one CPU core feeds a network without worker processes. A run
gets the same batches on every device and with any number of processes (see `gemkit.data.sampler`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gemkit.core.errors import DataError
from gemkit.core.probe import Batch
from gemkit.core.tensors import is_index
from gemkit.core.text import number_of
from gemkit.data.augment import crop_and_flip
from gemkit.data.checks import problems_of
from gemkit.data.fingerprint import tensor_digest
from gemkit.data.sampler import EpochSampler


@dataclass(frozen=True, eq=False, repr=False)
class TensorSource:
    """Inputs [N, ...] and targets, held on the device of the batches.

    uint8 images [N, C, H, W] are normalised to `(image / peak - mean) / std`; floating-point inputs
    are only cast to float32, and int64 ones, which are indices such as tokens, are left alone.
    Targets are int64 labels of classes, or bool or floating-point tensors [N, ...]. Augmentation
    crops every image at random after zero-padding it by `pad` and, with `flip`, mirrors it left to
    right with probability 1/2. `mark` replaces the hash of the images in a fingerprint.
    """

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pad: int = 0
    flip: bool = False
    peak: float = 255.0
    mark: str = ""

    def __post_init__(self) -> None:
        how = {name: getattr(self, name) for name in ("mean", "std", "peak", "pad", "flip")}
        problems = problems_of(self.images, self.labels, **how)
        if problems:
            raise DataError("these images and labels cannot be used: " + "; ".join(problems))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        kind = str(self.images.dtype).removeprefix("torch.")
        shape = "×".join(map(str, self.images.shape[1:]))
        images = number_of(len(self), f"{kind} image")
        return f"TensorSource({images} of {shape}, {self.images.device})"

    def steps(self, size: int) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self) // size)

    def to(self, device: torch.device) -> TensorSource:
        """Return this source with images and labels on the device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def targets(self) -> Tensor:
        """Return the target of every sample, in order."""
        return self.labels

    @property
    def are_indices(self) -> bool:
        """Whether inputs are indices, such as tokens, rather than values."""
        return is_index(self.images)

    def digest(self) -> str:
        """Return the hash of the images for a fingerprint."""
        return self.mark or tensor_digest(self.images)

    def batches(
        self,
        size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        augment: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> Iterator[Batch]:
        """Yield the batches of an epoch (see `Source.batches`)."""
        batches = EpochSampler(size, seed, epoch, augment, rank, world).batches(
            len(self), self.pad, flip=self.flip, device=self.images.device
        )
        return (self._batch(indices, draws) for indices, draws in batches)

    def _batch(self, indices: Tensor, draws: Tensor | None) -> Batch:
        images = self.images.index_select(0, indices)
        return transform(images, draws, self.pad, self._scale_and_shift), self.labels[indices]

    @cached_property
    def _scale_and_shift(self) -> Tensor:
        channels, sizes = self.images.shape[1], self.images.ndim - 2
        scales = scale_and_shift(self.mean, self.std, self.peak, channels)
        return scales.view(2, channels, *[1] * sizes).to(self.images.device)


def transform(images: Tensor, draws: Tensor | None, pad: int, scale_and_shift: Tensor) -> Tensor:
    """Crop and flip raw images if draws are given, then normalise them."""
    if draws is not None and len(images):
        images = crop_and_flip(images, draws, pad)
    if images.is_floating_point():
        return images.float()
    if is_index(images):
        return images
    scale, shift = scale_and_shift
    return images.float().mul_(scale).add_(shift)


def scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], peak: float, channels: int
) -> Tensor:
    """Fold peak, mean and std into a scale and a shift per channel, [2, C, 1, 1]."""
    means = torch.tensor(mean or (0.0,) * channels, dtype=torch.float64)
    stds = torch.tensor(std or (1.0,) * channels, dtype=torch.float64)
    return torch.stack([1 / (peak * stds), -means / stds]).float().view(2, -1, 1, 1)


def as_tensors(name: str, split: str, pair: object) -> Batch:
    """Convert a pair of tensors or NumPy arrays to tensors; refuse anything else."""
    values = tuple(pair) if isinstance(pair, tuple | list) else ()
    kinds = [type(value).__name__ for value in values] or [type(pair).__name__]
    try:
        # A copy, because torch refuses read-only arrays and negative strides.
        images, labels = (
            torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for x in values
        )
    except (TypeError, ValueError):
        images = labels = None
    if isinstance(images, Tensor) and isinstance(labels, Tensor):
        return images, labels
    raise DataError(
        f"data set '{name}', {split} split: give a pair (images, labels) of tensors or numeric "
        f"arrays, not {' and '.join(kinds)}"
    )


def make_source(
    name: str, split: str, pair: Batch, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
) -> TensorSource:
    """Make a source; errors name the data set and the split."""
    try:
        return TensorSource(*pair, mean, std)
    except DataError as problem:
        raise DataError(f"data set '{name}', {split} split: {problem}") from None
