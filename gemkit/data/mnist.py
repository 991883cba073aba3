"""MNIST and Fashion-MNIST, from idx files, plain or gzipped."""

from pathlib import Path
from typing import ClassVar

import torch

from gemkit.core.errors import DataError
from gemkit.data.binary import file_errors, read_idx
from gemkit.data.part import DatasetPart
from gemkit.data.source import Pair
from gemkit.data.standard import MemoryDataset, checked_labels
from gemkit.plugins.markers import hookimpl


class _Idx(MemoryDataset):
    """Greyscale images and labels in four idx files."""

    classes = 10
    pad = 2
    torchvision_name: ClassVar[str]
    """The name of torchvision's folder and class."""

    def files(self, where: Path) -> list[Path]:
        """List the files of images and labels, for training and for test."""
        return [
            self._find(where, f"{split}-{what}-ubyte")
            for split in ("train", "t10k")
            for what in ("images-idx3", "labels-idx1")
        ]

    def _find(self, where: Path, file: str) -> Path:
        """Find a file in torchvision's folder or, as Linux distributions have it, in `where`."""
        default = where / self.torchvision_name / "raw" / file
        paths = [default, default.with_name(f"{file}.gz"), where / file, where / f"{file}.gz"]
        return next((path for path in paths if path.exists()), default)

    def read(self, where: Path) -> tuple[Pair, Pair]:
        """Read the files."""
        images, labels, test_images, test_labels = self.files(where)
        return self._read_pair(images, labels), self._read_pair(test_images, test_labels)

    def _read_pair(self, image_file: Path, label_file: Path) -> Pair:
        """Read images [N, 1, H, W] and their labels."""
        with file_errors(image_file):
            images = torch.from_numpy(read_idx(image_file, 3).copy()).unsqueeze(1)
            if 0 in images.shape:
                raise DataError("holds no images")
        with file_errors(label_file):
            labels = torch.from_numpy(read_idx(label_file, 1).copy())
            return images, checked_labels(labels, images, self.classes)

    def fetch(self, where: Path) -> None:
        """Download and unpack the files."""
        from torchvision import datasets

        getattr(datasets, self.torchvision_name)(str(where), download=True)


class Mnist(_Idx):
    """70,000 handwritten digits of 28 × 28 pixels.

    54,000 for training, 6,000 for validation, 10,000 for test; augmented by crops (padding 2).
    Reads MNIST/raw/ in --data-dir.
    """

    name: ClassVar[str] = "mnist"
    torchvision_name = "MNIST"
    flip = False
    download_size = "about 12 MB"


class FashionMnist(_Idx):
    """70,000 pieces of clothing of 28 × 28 pixels in 10 classes.

    54,000 for training, 6,000 for validation, 10,000 for test; augmented by crops (padding 2) and
    flips. Reads FashionMNIST/raw/ in --data-dir.
    """

    name: ClassVar[str] = "fashion_mnist"
    torchvision_name = "FashionMNIST"
    flip = True
    download_size = "about 30 MB"


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Register both."""
    return [Mnist, FashionMnist]
