"""CIFAR-10 and CIFAR-100, from the files that Python users download."""

from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from gemkit.data.binary import read_bytes, reading
from gemkit.data.pickles import read_pickled_dict, uint8_array
from gemkit.data.source import Pair
from gemkit.data.standard import MemoryDataset, checked_labels
from gemkit.errors import DataError
from gemkit.hookspecs import hookimpl
from gemkit.parts import DatasetPart


class _Cifar(MemoryDataset):
    """Colour images of 32 × 32 pixels in pickled batches."""

    pad = 4
    flip = True
    traffic = "about 170 MB"
    label: ClassVar[str]
    home: ClassVar[str]
    train_files: ClassVar[tuple[str, ...]]
    test_file: ClassVar[str]

    def files(self, where: Path) -> list[Path]:
        """List the batches, in the folder that the archive unpacks to."""
        return [where / self.home / file for file in (*self.train_files, self.test_file)]

    def read(self, where: Path) -> tuple[Pair, Pair]:
        """Read every batch."""
        *batches, test = [self._batch(file) for file in self.files(where)]
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return (images, labels), test

    def _batch(self, file: Path) -> Pair:
        """Read one file: a row of 3072 bytes for each image, red before green before blue."""
        with reading(file):
            found = read_pickled_dict(read_bytes(file))
            if not {"data", self.label} <= found.keys():
                raise DataError(f"lacks data or {self.label}")
            rows = torch.from_numpy(uint8_array(found["data"]).copy())
            if rows.dim() != 2 or rows.shape[1] != 3 * 32 * 32:
                raise DataError(f"holds an array of shape {list(rows.shape)}, not [images, 3072]")
            labels = checked_labels(_integers(found[self.label]), rows, self.classes)
            return rows.view(-1, 3, 32, 32), labels

    def fetch(self, where: Path) -> None:
        """Fetch and unpack the archive; torchvision's own reader, which unpickles, is not used."""
        from torchvision import datasets

        known = getattr(datasets, self.name.upper())
        datasets.utils.download_and_extract_archive(
            known.url, str(where), filename=known.filename, md5=known.tgz_md5
        )


def _integers(values: object) -> Tensor:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise DataError("holds labels that are not a list of integers")
    try:
        return torch.tensor(values, dtype=torch.int64)
    except (OverflowError, RuntimeError) as problem:
        raise DataError(f"holds labels beyond all numbers ({problem})") from problem


class Cifar10(_Cifar):
    """60,000 colour photographs of 32 × 32 pixels in 10 classes.

    45,000 for training, 5,000 for validation, 10,000 for test; trained with crops (padding 4) and
    flips. Reads cifar-10-batches-py/ in --data-dir.
    """

    name: ClassVar[str] = "cifar10"
    classes = 10
    label = "labels"
    home = "cifar-10-batches-py"
    train_files = tuple(f"data_batch_{number}" for number in range(1, 6))
    test_file = "test_batch"


class Cifar100(_Cifar):
    """60,000 colour photographs of 32 × 32 pixels in 100 classes.

    45,000 for training, 5,000 for validation, 10,000 for test; trained with crops (padding 4) and
    flips. Reads cifar-100-python/ in --data-dir.
    """

    name: ClassVar[str] = "cifar100"
    classes = 100
    label = "fine_labels"
    home = "cifar-100-python"
    train_files = ("train",)
    test_file = "test"


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Offer both."""
    return [Cifar10, Cifar100]
