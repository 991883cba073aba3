"""Data sets: a train, a validation and a test split, each a source of batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from gemkit.core.errors import DataError
from gemkit.core.tensors import is_index
from gemkit.core.text import number_of
from gemkit.data.fingerprint import SPLITS, Fingerprint, fingerprint_of
from gemkit.data.splits import channel_statistics, split_stratified, strata
from gemkit.data.tensor_source import TensorSource, as_tensors, make_source

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
