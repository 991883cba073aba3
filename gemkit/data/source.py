"""Where batches come from: whole data sets held as tensors, cropped, flipped and scaled in batches.

Nothing is read, decoded or augmented image by image, so one CPU core feeds a network without
worker processes. The same run sees the same batches on every device and with any number of
processes (see `gemkit.data.order`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gemkit.data.augment import crop_and_flip
from gemkit.data.fingerprint import SPLITS, Fingerprint, fingerprint_of, tensor_digest
from gemkit.data.order import Epoch
from gemkit.data.splits import channel_statistics, split_stratified
from gemkit.errors import DataError
from gemkit.wording import number_of

__all__ = ["Data", "Pair", "Source", "TensorSource", "channel_statistics", "split_stratified"]

Pair = tuple[Tensor, Tensor]
"""Images and their labels."""


class Source(Protocol):
    """A fixed set of labelled images that can be read in batches, any number of times."""

    def __len__(self) -> int:
        """Count the samples."""
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
        """Go through every sample exactly once, in order or, with a seed, shuffled for this epoch.

        The last batch may be smaller. Of `world` processes each takes every `world`-th sample of
        every batch, so together they see just what one process would see. A share of a last batch
        smaller than `world` may be empty.
        """
        ...

    def steps(self, size: int) -> int:
        """Count the batches of an epoch."""
        ...

    def to(self, device: torch.device) -> Source:
        """Return this source with its batches on the device."""
        ...

    def targets(self) -> Tensor:
        """Return the label of every sample, in order."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class TensorSource:
    """Images [N, C, H, W] and labels [N], held in memory where the batches are wanted.

    Images of type uint8 come out as `(image / peak - mean) / std`; floating-point images are used
    as they are, in single precision. Augmentation gives every sample its own crop, after `pad`
    zeros were put around the raw image, and where `flip` is set mirrors it, left to right, with
    probability 1/2. `mark` stands for the images in a fingerprint; without one they are hashed.
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
        problems = _problems(self)
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
        """Count the batches of an epoch."""
        return -(-len(self) // size)

    def to(self, device: torch.device) -> TensorSource:
        """Return this source with images and labels on the device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def targets(self) -> Tensor:
        """Return the label of every sample, in order."""
        return self.labels

    def digest(self) -> str:
        """Return what stands for the images in a fingerprint."""
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
        """Go through every sample once (see `Source.batches`)."""
        turns = Epoch(size, seed, epoch, augment, rank, world).turns(
            len(self), self.pad, flip=self.flip, device=self.images.device
        )
        return (self._batch(chosen, draws) for chosen, draws in turns)

    def _batch(self, chosen: Tensor, draws: Tensor | None) -> Pair:
        """Put one batch together."""
        images = self.images.index_select(0, chosen)
        return finished(images, draws, self.pad, self._scale_and_shift), self.labels[chosen]

    @cached_property
    def _scale_and_shift(self) -> Tensor:
        channels = self.images.shape[1]
        return scale_and_shift(self.mean, self.std, self.peak, channels).to(self.images.device)


def finished(images: Tensor, draws: Tensor | None, pad: int, scale_and_shift: Tensor) -> Tensor:
    """Crop and flip raw images where draws are given, and bring them to the network's scale."""
    if draws is not None and len(images):
        images = crop_and_flip(images, draws, pad)
    if images.is_floating_point():
        return images.float()
    scale, shift = scale_and_shift
    return images.float().mul_(scale).add_(shift)


def scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], peak: float, channels: int
) -> Tensor:
    """Fold peak, mean and std into a factor and a summand for each channel, [2, C, 1, 1]."""
    means = torch.tensor(mean or (0.0,) * channels, dtype=torch.float64)
    stds = torch.tensor(std or (1.0,) * channels, dtype=torch.float64)
    return torch.stack([1 / (peak * stds), -means / stds]).float().view(2, -1, 1, 1)


def _problems(source: TensorSource) -> list[str]:
    """Say everything that is wrong with a source, in plain sentences."""
    images, labels, shape = source.images, source.labels, list(source.images.shape)
    if len(shape) != 4 or 0 in shape:
        return [f"images must be [samples, channels, height, width] with none 0, not {shape}"]
    count, channels, floats = shape[0], shape[1], images.is_floating_point()
    statistics = {len(source.mean), len(source.std)}
    checks = [
        (
            floats or images.dtype == torch.uint8,
            f"images must be uint8 or float, not {images.dtype}",
        ),
        (labels.dtype == torch.int64, f"labels must be int64, not {labels.dtype}"),
        (
            list(labels.shape) == [count],
            f"for {number_of(count, 'image')} give {number_of(count, 'label')}, not labels of "
            f"shape {list(labels.shape)}",
        ),
        (bool((labels >= 0).all()), "labels count from 0, and some are negative"),
        (
            statistics == {0} or (statistics == {channels} and not floats),
            f"mean and std need {channels} values for uint8 images, one per channel, and none for "
            "float images, which are used as they are",
        ),
        (min((*source.std, source.peak)) > 0, "std and peak must be above 0"),
        (source.pad >= 0, f"pad must be 0 or more, not {source.pad}"),
    ]
    return [sentence for fine, sentence in checks if not fine]


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """A data set, split for training, choosing (validation) and reporting (test)."""

    name: str
    train: Source
    validation: Source
    test: Source
    classes: int
    shape: tuple[int, int, int]
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part in SPLITS:
            highest = int(getattr(self, part).targets().max())
            if highest >= self.classes:
                raise DataError(
                    f"data set '{self.name}' has {self._classes()}, labels 0 to "
                    f"{self.classes - 1}, but its {part} split holds label {highest}"
                )

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(getattr(self, part)):,} {part}" for part in SPLITS)
        shape = "×".join(map(str, self.shape))
        return f"Data('{self.name}': {counts}; {self._classes()}, images of {shape})"

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What tells these data from others (see `gemkit.data.fingerprint`)."""
        sources = {part: getattr(self, part) for part in SPLITS}
        return fingerprint_of(self.classes, self.class_names, sources)

    def _classes(self) -> str:
        return number_of(self.classes, "class", "classes")

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
        """Make a data set of (images, labels) pairs: uint8 is normalised, floats stay as they are.

        NumPy arrays will do as well. Without a validation split a tenth of train, the same share
        of every class, becomes one. Class names only count in the fingerprint.
        """
        train, test = _tensors(name, "train", train), _tensors(name, "test", test)
        if validation is not None:
            validation = _tensors(name, "validation", validation)
        _named_source(name, "train", train)
        if validation is None:
            chosen = split_stratified(train[1], (9, 1), seed=0)
            train, validation = ((train[0][part], train[1][part]) for part in chosen)
        mean, std = channel_statistics(train[0])
        parts = {"train": train, "validation": validation, "test": test}
        sources = {part: _named_source(name, part, parts[part], mean, std) for part in parts}
        shapes = {part: tuple(images.shape[1:]) for part, (images, _) in parts.items()}
        if len(set(shapes.values())) > 1:
            raise DataError(f"data set '{name}': its splits differ in image shape: {shapes}")
        if classes is None:
            classes = 1 + max(int(labels.max()) for _, labels in parts.values())
        channels, height, width = shapes["train"]
        shape = (channels, height, width)
        return cls(name=name, **sources, classes=classes, shape=shape, class_names=class_names)


def _tensors(name: str, part: str, pair: object) -> Pair:
    """Return a pair of tensors, made of NumPy arrays where need be; refuse anything else."""
    both = tuple(pair) if isinstance(pair, tuple | list) else ()
    kinds = [type(one).__name__ for one in both] or [type(pair).__name__]
    try:
        # A copy, as torch does not take arrays that are read-only or run backwards.
        images, labels = (
            torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for x in both
        )
    except (TypeError, ValueError):
        images = labels = None
    if isinstance(images, Tensor) and isinstance(labels, Tensor):
        return images, labels
    raise DataError(
        f"data set '{name}', {part} split: give a pair (images, labels) of tensors or arrays of "
        f"numbers, not {' and '.join(kinds)}"
    )


def _named_source(
    name: str, part: str, pair: Pair, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
) -> TensorSource:
    """Make a source, and let what is wrong with it say which split of which data set it is."""
    try:
        return TensorSource(*pair, mean, std)
    except DataError as problem:
        raise DataError(f"data set '{name}', {part} split: {problem}") from None
