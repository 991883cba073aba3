"""Data sets held as tensors, augmented and normalised batch by batch.

Nothing is done image by image, so one CPU core feeds a network without worker processes. A run
gets the same batches on every device and with any number of processes (see `gemkit.data.sampler`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gemkit.core.errors import DataError
from gemkit.core.tensors import is_index
from gemkit.core.text import number_of
from gemkit.data.augment import crop_and_flip
from gemkit.data.checks import problems_of
from gemkit.data.fingerprint import SPLITS, Fingerprint, fingerprint_of, tensor_digest
from gemkit.data.sampler import EpochSampler
from gemkit.data.splits import channel_statistics, split_stratified, strata

__all__ = ["Data", "Pair", "Source", "TensorSource", "channel_statistics", "split_stratified"]

Pair = tuple[Tensor, Tensor]
"""Inputs and their targets, for example images and labels."""


class Source(Protocol):
    """A fixed set of inputs with targets, read in batches."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def batches(
        self,
        size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        augment: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> Iterator[Pair]:
        """Yield every sample exactly once, in order or, with a seed, shuffled for this epoch.

        The last batch may be smaller. With `world` processes, each takes every `world`-th sample
        of every batch, so together they get the batches of a single process. A process's share of
        a last batch smaller than `world` may be empty.
        """
        ...

    def steps(self, size: int) -> int:
        """Return the number of batches in an epoch."""
        ...

    def to(self, device: torch.device) -> Source:
        """Return this source with its batches on the device."""
        ...

    def targets(self) -> Tensor:
        """Return the target of every sample, in order: the number of a class, or others."""
        ...


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
    ) -> Iterator[Pair]:
        """Yield the batches of an epoch (see `Source.batches`)."""
        batches = EpochSampler(size, seed, epoch, augment, rank, world).batches(
            len(self), self.pad, flip=self.flip, device=self.images.device
        )
        return (self._batch(indices, draws) for indices, draws in batches)

    def _batch(self, indices: Tensor, draws: Tensor | None) -> Pair:
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


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """A data set with its train, validation and test split."""

    name: str
    train: Source
    validation: Source
    test: Source
    classes: int | None
    """The number of classes; None where targets are others, such as several labels or values."""
    shape: tuple[int, ...]
    """The shape of one input."""
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.classes is None:
            return
        for split in SPLITS:
            highest = int(getattr(self, split).targets().max())
            if highest >= self.classes:
                raise DataError(
                    f"data set '{self.name}' has {self._classes()}, labels 0 to "
                    f"{self.classes - 1}, but its {split} split holds label {highest}"
                )

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(getattr(self, split)):,} {split}" for split in SPLITS)
        shape = "×".join(map(str, self.shape))
        kind = "images" if len(self.shape) == 3 else "inputs"
        return f"Data('{self.name}': {counts}; {self._classes()}, {kind} of {shape})"

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the data (see `gemkit.data.fingerprint`)."""
        sources = {split: getattr(self, split) for split in SPLITS}
        return fingerprint_of(self.classes, self.class_names, sources)

    def _classes(self) -> str:
        if self.classes is None:
            shape = "×".join(map(str, self.train.targets().shape[1:]))
            return f"targets of {shape}" if shape else "a target"
        return number_of(self.classes, "class", "classes")

    @property
    def indices(self) -> bool:
        """Whether inputs are indices, such as tokens, rather than values."""
        return isinstance(self.train, TensorSource) and is_index(self.train.images)

    def blank(self, count: int) -> Tensor:
        """Return so many inputs of zeros."""
        dtype = torch.int64 if self.indices else torch.float32
        return torch.zeros(count, *self.shape, dtype=dtype)

    def to(self, device: torch.device) -> Data:
        """Return this data set with its batches on the device."""
        train, validation, test = self.train, self.validation, self.test
        return replace(
            self, train=train.to(device), validation=validation.to(device), test=test.to(device)
        )

    @classmethod
    def of_tensors(
        cls,
        *,
        train: Pair,
        test: Pair,
        validation: Pair | None = None,
        classes: int | None = None,
        class_names: tuple[str, ...] = (),
        name: str = "custom",
    ) -> Data:
        """Make a data set from (inputs, targets) pairs of tensors or NumPy arrays.

        uint8 images are normalised, floating-point inputs are not; int64 inputs are indices. int64
        targets are labels of classes; bool and floating-point targets of any shape are several
        labels or values, for an objective such as "binary" or "mse". Without `validation`, a tenth
        of train is held out, stratified by class. Class names only matter for the fingerprint.
        """
        train, test = _as_tensors(name, "train", train), _as_tensors(name, "test", test)
        if validation is not None:
            validation = _as_tensors(name, "validation", validation)
        _make_source(name, "train", train)
        if validation is None:
            chosen = split_stratified(strata(train[1]), (9, 1), seed=0)
            train, validation = ((train[0][part], train[1][part]) for part in chosen)
        mean, std = channel_statistics(train[0])
        pairs = {"train": train, "validation": validation, "test": test}
        sources = {split: _make_source(name, split, pairs[split], mean, std) for split in pairs}
        shapes = {split: tuple(images.shape[1:]) for split, (images, _) in pairs.items()}
        if len(set(shapes.values())) > 1:
            raise DataError(f"data set '{name}': its splits differ in image shape: {shapes}")
        rows = {split: tuple(targets.shape[1:]) for split, (_, targets) in pairs.items()}
        kinds = {str(targets.dtype) for _, targets in pairs.values()}
        if len(set(rows.values())) > 1 or len(kinds) > 1:
            raise DataError(
                f"data set '{name}': its splits differ in their targets: {rows}, {sorted(kinds)}"
            )
        if classes is None and train[1].dtype == torch.int64:
            classes = 1 + max(int(labels.max()) for _, labels in pairs.values())
        shape = shapes["train"]
        return cls(name=name, **sources, classes=classes, shape=shape, class_names=class_names)


def _as_tensors(name: str, split: str, pair: object) -> Pair:
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


def _make_source(
    name: str, split: str, pair: Pair, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
) -> TensorSource:
    """Make a source; errors name the data set and the split."""
    try:
        return TensorSource(*pair, mean, std)
    except DataError as problem:
        raise DataError(f"data set '{name}', {split} split: {problem}") from None
