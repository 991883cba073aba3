"""Data sets: a train, a validation and a test split, each a source of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from gemkit.core.errors import DataError
from gemkit.core.text import number_of
from gemkit.data.batch import Split
from gemkit.data.fingerprint import SPLITS, Fingerprint, fingerprint_of
from gemkit.data.objects import dataset_sources, loader_sources
from gemkit.data.readers import Collate
from gemkit.data.splits import channel_statistics, split_stratified, strata
from gemkit.data.stream import StreamSource
from gemkit.data.tensor_source import TensorSource, as_tensors, make_source

__all__ = [
    "Data",
    "Pair",
    "Source",
    "StreamSource",
    "TensorSource",
    "channel_statistics",
    "known_size",
    "size_of_batches",
    "split_stratified",
]

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
        """Return the target of every sample, in order: the number of a class, or others.

        A source that does not hold them returns those of its first batch.
        """
        ...


def size_of_batches(source: Source, size: int) -> int:
    """Return the size of batches: the asked one, unless a loader makes its own."""
    return getattr(source, "own_size", None) or size


def known_size(source: Source) -> int | None:
    """Return the number of samples; None if only reading a stream to its end would tell."""
    return source.samples if isinstance(source, StreamSource) else len(source)


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """A data set with its train, validation and test split."""

    name: str
    train: Source
    validation: Source
    test: Source
    classes: int | None
    """The number of classes; None where targets are others, or a stream does not know it."""
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

    @property
    def has_classes(self) -> bool:
        """Whether targets are the numbers of classes."""
        return self.classes is not None or self.train.targets().dtype == torch.int64

    def _classes(self) -> str:
        if self.classes is None and self.has_classes:
            return "labels of classes"
        if self.classes is None:
            shape = "×".join(map(str, self.train.targets().shape[1:]))
            return f"targets of {shape}" if shape else "a target"
        return number_of(self.classes, "class", "classes")

    @property
    def indices(self) -> bool:
        """Whether inputs are indices, such as tokens, rather than values."""
        return bool(getattr(self.train, "are_indices", False))

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
        train, test = as_tensors(name, "train", train), as_tensors(name, "test", test)
        if validation is not None:
            validation = as_tensors(name, "validation", validation)
        make_source(name, "train", train)
        if validation is None:
            chosen = split_stratified(strata(train[1]), (9, 1), seed=0)
            train, validation = ((train[0][part], train[1][part]) for part in chosen)
        mean, std = channel_statistics(train[0])
        pairs = {"train": train, "validation": validation, "test": test}
        sources = {split: make_source(name, split, pairs[split], mean, std) for split in pairs}
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

    @classmethod
    def of_datasets(
        cls,
        *,
        train: Any,  # noqa: ANN401 - anything with __len__ and __getitem__
        test: Any,  # noqa: ANN401
        validation: Any = None,  # noqa: ANN401
        split: Split | None = None,
        collate: Collate | None = None,
        workers: int = 0,
        classes: int | None = None,
        class_names: tuple[str, ...] = (),
        name: str = "custom",
    ) -> Data:
        """Make a data set from map-style data sets, whose samples are fetched batch by batch.

        Args:
            train: samples by number, such as a `torch.utils.data.Dataset` or one of Hugging Face.
            test: the same for testing.
            validation: the same for validation; without it, a tenth of train is held out.
            split: a function of a batch that returns inputs and targets, if it is no such pair.
            collate: makes a batch of a list of samples, as `collate_fn` of a DataLoader.
            workers: processes that fetch; 0 fetches in this one.
            classes: the number of classes, to check every label.
            class_names: these only matter for the fingerprint.
            name: the name in messages.
        """
        given = {"train": train, "test": test, "validation": validation}
        sources = dataset_sources(
            name, given, split=split, collate=collate, workers=workers, classes=classes
        )
        return cls(name, **sources, classes=classes, shape=_shape(sources), class_names=class_names)

    @classmethod
    def of_loaders(
        cls,
        *,
        train: Iterable[Any],
        test: Iterable[Any],
        validation: Iterable[Any] | None = None,
        split: Split | None = None,
        steps: int | None = None,
        classes: int | None = None,
        class_names: tuple[str, ...] = (),
        name: str = "custom",
    ) -> Data:
        """Make a data set from DataLoaders, or other iterables of batches that begin again.

        Args:
            train: batches of inputs and targets; they are used as they come, whatever
                `Plan.batch_size` is.
            test: the same for testing.
            validation: the same for validation, which must be given: a loader cannot be divided.
            split: a function of a batch that returns inputs and targets, if it is no such pair.
            steps: the batches of train in an epoch, if the loader has no length or does not end.
            classes: the number of classes, to check every label.
            class_names: these only matter for the fingerprint.
            name: the name in messages.
        """
        given = {"train": train, "validation": validation, "test": test}
        sources = loader_sources(name, given, split=split, steps=steps, classes=classes)
        return cls(name, **sources, classes=classes, shape=_shape(sources), class_names=class_names)


def _shape(sources: dict[str, StreamSource]) -> tuple[int, ...]:
    return tuple(sources["train"].first[0].shape[1:])
