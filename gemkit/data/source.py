"""Where batches come from: whole data sets held as tensors, cropped, flipped and scaled in batches.

Nothing is read, decoded or augmented image by image, so one CPU core feeds a network without
worker processes. Every random number comes from the CPU and depends on (seed, epoch) alone: the
same run sees the same batches on every device and with any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from gemkit.data.augment import crop_and_flip, draw
from gemkit.data.splits import channel_statistics, split_stratified
from gemkit.errors import DataError
from gemkit.tensors import generator

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


@dataclass(frozen=True, eq=False)
class TensorSource:
    """Images [N, C, H, W] and labels [N], held in memory where the batches are wanted.

    Images of type uint8 come out as `(image / peak - mean) / std`; floating-point images are used
    as they are, in single precision. Augmentation gives every sample its own crop, after `pad`
    zeros were put around the raw image, and where `flip` is set mirrors it, left to right, with
    probability 1/2.
    """

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pad: int = 0
    flip: bool = False
    peak: float = 255.0

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise DataError("these images and labels cannot be used: " + "; ".join(problems))

    def __len__(self) -> int:
        return len(self.labels)

    def steps(self, size: int) -> int:
        """Count the batches of an epoch."""
        return -(-len(self) // size)

    def to(self, device: torch.device) -> TensorSource:
        """Return this source with images and labels on the device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def targets(self) -> Tensor:
        """Return the label of every sample, in order."""
        return self.labels

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
        if size < 1 or not 0 <= rank < world:
            raise DataError(
                f"no batches of {size} samples for rank {rank} of {world}: the size must be at "
                "least 1, and ranks count from 0"
            )
        if augment and seed is None:
            raise DataError("augmentation draws random numbers: give batches() a seed")
        # Drawn and moved once an epoch, so that no batch waits for a transfer to the device.
        order = self._order(seed, epoch)
        draws = self._draw(seed, epoch) if augment and seed is not None else None
        places = (
            slice(start + rank, min(start + size, len(self)), world)
            for start in range(0, len(self), size)
        )
        return (self._batch(order[at], None if draws is None else draws[:, at]) for at in places)

    def _order(self, seed: int | None, epoch: int) -> Tensor:
        """Return the order of the samples in this epoch."""
        device = self.images.device
        if seed is None:
            return torch.arange(len(self), device=device)
        return torch.randperm(len(self), generator=generator(seed, f"order {epoch}")).to(device)

    def _draw(self, seed: int, epoch: int) -> Tensor | None:
        """Draw the crop and flip of every sample of an epoch; None where there is no choice."""
        if not self.pad and not self.flip:
            return None
        draws = draw(len(self), self.pad, flip=self.flip, seed=seed, epoch=epoch)
        return draws.to(self.images.device)

    def _batch(self, chosen: Tensor, draws: Tensor | None) -> Pair:
        """Put one batch together."""
        images, labels = self.images.index_select(0, chosen), self.labels.index_select(0, chosen)
        if draws is not None and len(chosen):
            images = crop_and_flip(images, draws, self.pad)
        if images.is_floating_point():
            return images.float(), labels
        scale, shift = self._scale_and_shift
        return images.float().mul_(scale).add_(shift), labels

    @cached_property
    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Fold peak, mean and std into a factor and a summand for each channel."""
        channels = self.images.shape[1]
        mean = torch.tensor(self.mean or (0.0,) * channels, dtype=torch.float64)
        std = torch.tensor(self.std or (1.0,) * channels, dtype=torch.float64)
        both = torch.stack([1 / (self.peak * std), -mean / std]).float().view(2, -1, 1, 1)
        scale, shift = both.to(self.images.device)
        return scale, shift


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
            f"{count} images need {count} labels, not labels of shape {list(labels.shape)}",
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


@dataclass(frozen=True, eq=False)
class Data:
    """A data set, split for training, choosing (validation) and reporting (test)."""

    name: str
    train: Source
    validation: Source
    test: Source
    classes: int
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        for part in ("train", "validation", "test"):
            highest = int(getattr(self, part).targets().max())
            if highest >= self.classes:
                raise DataError(
                    f"data set '{self.name}' has {self.classes} classes, labels 0 to "
                    f"{self.classes - 1}, but its {part} split holds label {highest}"
                )

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
        name: str = "custom",
    ) -> Data:
        """Make a data set of (images, labels) pairs: uint8 is normalised, floats stay as they are.

        Without a validation split a tenth of train, the same share of every class, becomes one.
        """
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
        return cls(name=name, **sources, classes=classes, shape=(channels, height, width))


def _named_source(
    name: str, part: str, pair: Pair, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
) -> TensorSource:
    """Make a source, and let what is wrong with it say which split of which data set it is."""
    try:
        return TensorSource(*pair, mean, std)
    except DataError as problem:
        raise DataError(f"data set '{name}', {part} split: {problem}") from None
