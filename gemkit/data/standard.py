"""What the well-known data sets have in common: files in a known place, splits, and a download."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gemkit.data.source import Data, Pair, TensorSource
from gemkit.data.splits import channel_statistics, divide
from gemkit.errors import DataError
from gemkit.parts import DatasetPart
from gemkit.wording import number_of


class SplitDataset(DatasetPart):
    """A data set whose training images can be held back for validation, or not."""

    train_on: Literal["train", "full"] = Field(
        default="train",
        description="'full' trains on the validation images too, for a final run once everything "
        "is chosen; validation accuracy then flatters",
    )
    limit: int | None = Field(
        default=None,
        ge=1,
        description="use at most this many images of each split, the same share of every class",
    )

    def divide(self, labels: Tensor, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Choose the samples of every split."""
        parts = divide(labels, groups, full=self.train_on == "full", limit=self.limit)
        for part, chosen in parts.items():
            if not len(chosen):
                raise DataError(
                    f"data set '{self.name}' has too few images ({len(labels)}) to set some aside "
                    f"for {part}"
                )
        return parts


class MemoryDataset(SplitDataset):
    """A data set in files of its own format, small enough to be held in memory."""

    classes: ClassVar[int]
    pad: ClassVar[int]
    flip: ClassVar[bool]
    traffic: ClassVar[str]
    """How much there is to download."""

    @abstractmethod
    def files(self, where: Path) -> list[Path]:
        """List the files it is read from."""

    @abstractmethod
    def read(self, where: Path) -> tuple[Pair, Pair]:
        """Read uint8 images [N, C, H, W] and labels, for training and for test."""

    @abstractmethod
    def fetch(self, where: Path) -> None:
        """Download its files with the help of torchvision."""

    def download(self, folder: Path | None) -> None:
        """Download what is not there yet."""
        where = home_of(folder)
        if not all(file.exists() for file in self.files(where)):
            fetching(self.name, where, self.fetch)

    def load(self, folder: Path | None) -> Data:
        """Read, split and normalise it; only training images decide how."""
        where = home_of(folder)
        require(self.name, self.files(where), where, self.traffic)
        train, test = self.read(where)
        if train[0].shape[1:] != test[0].shape[1:]:
            shapes = [list(images.shape[1:]) for images, _ in (train, test)]
            raise DataError(
                f"data set '{self.name}' in {where}: training images are {shapes[0]}, test "
                f"images {shapes[1]}; the files do not belong together"
            )
        images, labels = torch.cat([train[0], test[0]]), torch.cat([train[1], test[1]])
        numbers = torch.arange(len(labels))
        count = len(train[1])
        parts = self.divide(labels, {"train": numbers[:count], "test": numbers[count:]})
        mean, std = channel_statistics(images[parts["train"]])
        sources = {
            part: TensorSource(
                images[chosen], labels[chosen], mean, std, pad=self.pad, flip=self.flip
            )
            for part, chosen in parts.items()
        }
        channels, height, width = images.shape[1:]
        shape = (channels, height, width)
        return Data(self.name, **sources, classes=self.classes, shape=shape, class_names=())


def home_of(folder: Path | None) -> Path:
    """Return the folder where data sets are kept, as a full path."""
    return (folder or Path("data")).expanduser().absolute()


def require(name: str, paths: Iterable[Path], where: Path, traffic: str) -> None:
    """Say what is missing of a data set, where it should be, and how to get it."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise DataError(
            "\n  ".join([f"data set '{name}' is not in {where}; missing:", *missing])
            + "\nPut it there, name the folder it is in with --data-dir, or fetch it with "
            f"--download ({traffic})."
        )


def checked_labels(labels: Tensor, images: Tensor, classes: int) -> Tensor:
    """Return the labels of as many images as int64, each one of the classes."""
    if len(labels) != len(images) or not len(labels):
        raise DataError(
            f"has {number_of(len(labels), 'label')} for {number_of(len(images), 'image')}"
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise DataError(
            f"has labels from {lowest} to {highest}, and its classes are 0 to {classes - 1}"
        )
    return labels.long()


def fetching(name: str, where: Path, fetch: Callable[[Path], None]) -> None:
    """Download; whatever goes wrong on the way, say it and where files could be put by hand."""
    try:
        where.mkdir(parents=True, exist_ok=True)
        fetch(where)
    except (OSError, RuntimeError, ValueError, EOFError) as problem:
        raise DataError(
            f"data set '{name}' could not be fetched into {where}: {problem}; try again, or put "
            "its files there by hand (without --download, gemkit says which)"
        ) from problem
