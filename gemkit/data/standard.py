"""Base classes of the standard data sets: files in `--data-dir`, splits, download."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gemkit.core.errors import DataError
from gemkit.core.text import number_of
from gemkit.data.part import DatasetPart
from gemkit.data.source import Data, Pair, TensorSource
from gemkit.data.splits import channel_statistics, make_splits


class SplitDataset(DatasetPart):
    """A data set that holds out part of its training images for validation."""

    train_on: Literal["train", "full"] = Field(
        default="train",
        description="'full' also trains on the validation images, for a final run; validation "
        "accuracy is then too high",
    )
    limit: int | None = Field(
        default=None,
        ge=1,
        description="maximum number of images of each split, stratified by class",
    )

    def make_splits(self, labels: Tensor, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Choose the samples of every split."""
        splits = make_splits(labels, groups, full=self.train_on == "full", limit=self.limit)
        for split, chosen in splits.items():
            if not len(chosen):
                raise DataError(
                    f"data set '{self.name}' has too few images ({len(labels)}) to hold some out "
                    f"for {split}"
                )
        return splits


class MemoryDataset(SplitDataset):
    """A data set in its own file format that fits in memory."""

    classes: ClassVar[int]
    pad: ClassVar[int]
    flip: ClassVar[bool]
    download_size: ClassVar[str]

    @abstractmethod
    def files(self, where: Path) -> list[Path]:
        """List the files that `read` needs."""

    @abstractmethod
    def read(self, where: Path) -> tuple[Pair, Pair]:
        """Read uint8 images [N, C, H, W] and labels, for training and for test."""

    @abstractmethod
    def fetch(self, where: Path) -> None:
        """Download the files with torchvision."""

    def download(self, folder: Path | None) -> None:
        """Download the files unless they exist."""
        where = data_folder(folder)
        if not all(file.exists() for file in self.files(where)):
            download_into(self.name, where, self.fetch)

    def load(self, folder: Path | None) -> Data:
        """Read and split the images; normalise by statistics of the training images."""
        where = data_folder(folder)
        require_files(self.name, self.files(where), where, self.download_size)
        train, test = self.read(where)
        if train[0].shape[1:] != test[0].shape[1:]:
            shapes = [list(images.shape[1:]) for images, _ in (train, test)]
            raise DataError(
                f"data set '{self.name}' in {where}: training images are {shapes[0]}, test "
                f"images {shapes[1]}; the files do not belong together"
            )
        images, labels = torch.cat([train[0], test[0]]), torch.cat([train[1], test[1]])
        indices = torch.arange(len(labels))
        count = len(train[1])
        splits = self.make_splits(labels, {"train": indices[:count], "test": indices[count:]})
        mean, std = channel_statistics(images[splits["train"]])
        sources = {
            split: TensorSource(
                images[chosen], labels[chosen], mean, std, pad=self.pad, flip=self.flip
            )
            for split, chosen in splits.items()
        }
        channels, height, width = images.shape[1:]
        shape = (channels, height, width)
        return Data(self.name, **sources, classes=self.classes, shape=shape, class_names=())


def data_folder(folder: Path | None) -> Path:
    """Return the folder of the data sets as an absolute path; the default is `data`."""
    return (folder or Path("data")).expanduser().absolute()


def require_files(name: str, paths: Iterable[Path], where: Path, download_size: str) -> None:
    """Raise an error that lists the missing files of a data set and how to get them."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise DataError(
            "\n  ".join([f"data set '{name}' is not in {where}; missing:", *missing])
            + "\nPut it there, give the folder it is in with --data-dir, or download it with "
            f"--download ({download_size})."
        )


def checked_labels(labels: Tensor, images: Tensor, classes: int) -> Tensor:
    """Return labels as int64, after checking their number and range."""
    if len(labels) != len(images) or not len(labels):
        raise DataError(
            f"has {number_of(len(labels), 'label')} for {number_of(len(images), 'image')}"
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise DataError(
            f"has labels from {lowest} to {highest}, but its classes are 0 to {classes - 1}"
        )
    return labels.long()


def download_into(name: str, where: Path, fetch: Callable[[Path], None]) -> None:
    """Download a data set; errors say where to put its files by hand."""
    try:
        where.mkdir(parents=True, exist_ok=True)
        fetch(where)
    except (OSError, RuntimeError, ValueError, EOFError) as problem:
        raise DataError(
            f"data set '{name}' could not be downloaded to {where}: {problem}; try again, or put "
            "its files there by hand (without --download, gemkit lists them)"
        ) from problem
