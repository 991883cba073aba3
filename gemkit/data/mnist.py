"""MNIST and Fashion-MNIST, from idx files, packed with gzip or not."""

from pathlib import Path
from typing import ClassVar

import torch

from gemkit.data.binary import read_idx, reading
from gemkit.data.source import Pair
from gemkit.data.standard import MemoryDataset, checked_labels
from gemkit.errors import DataError
from gemkit.hookspecs import hookimpl
from gemkit.parts import DatasetPart


class _Idx(MemoryDataset):
    """Grey images and labels in four idx files."""

    classes = 10
    pad = 2
    home: ClassVar[str]
    """The folder torchvision keeps them in; it also names torchvision's class."""

    def files(self, where: Path) -> list[Path]:
        """Find images and labels, for training and for test."""
        return [
            self._find(where, f"{split}-{what}-ubyte")
            for split in ("train", "t10k")
            for what in ("images-idx3", "labels-idx1")
        ]

    def _find(self, where: Path, file: str) -> Path:
        """Find a file where torchvision puts it or, as distributions have it, in the folder."""
        usual = where / self.home / "raw" / file
        places = [usual, usual.with_name(f"{file}.gz"), where / file, where / f"{file}.gz"]
        return next((place for place in places if place.exists()), usual)

    def read(self, where: Path) -> tuple[Pair, Pair]:
        """Read the files."""
        images, labels, test_images, test_labels = self.files(where)
        return self._pair(images, labels), self._pair(test_images, test_labels)

    def _pair(self, image_file: Path, label_file: Path) -> Pair:
        """Read images [N, 1, H, W] and their labels."""
        with reading(image_file):
            images = torch.from_numpy(read_idx(image_file, 3).copy()).unsqueeze(1)
            if 0 in images.shape:
                raise DataError("holds no images")
        with reading(label_file):
            labels = torch.from_numpy(read_idx(label_file, 1).copy())
            return images, checked_labels(labels, images, self.classes)

    def fetch(self, where: Path) -> None:
        """Fetch and unpack the files."""
        from torchvision import datasets

        getattr(datasets, self.home)(str(where), download=True)


class Mnist(_Idx):
    """70,000 handwritten digits of 28 × 28 pixels.

    54,000 for training, 6,000 for validation, 10,000 for test; trained with crops (padding 2).
    Reads MNIST/raw/ in --data-dir.
    """

    name: ClassVar[str] = "mnist"
    home = "MNIST"
    flip = False
    traffic = "about 12 MB"


class FashionMnist(_Idx):
    """70,000 pieces of clothing in 28 × 28 pixels and 10 classes.

    54,000 for training, 6,000 for validation, 10,000 for test; trained with crops (padding 2) and
    flips. Reads FashionMNIST/raw/ in --data-dir.
    """

    name: ClassVar[str] = "fashion_mnist"
    home = "FashionMNIST"
    flip = True
    traffic = "about 30 MB"


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Offer both."""
    return [Mnist, FashionMnist]
