"""CIFAR-10 and CIFAR-100, from their Python version (pickled batches)."""

from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from gemkit.core.errors import DataError
from gemkit.data.binary import file_errors, read_bytes
from gemkit.data.part import DatasetPart
from gemkit.data.pickles import read_pickled_dict, uint8_array
from gemkit.data.source import Pair
from gemkit.data.standard import MemoryDataset, checked_labels
from gemkit.plugins.markers import hookimpl


class _Cifar(MemoryDataset):
    """RGB images of 32 × 32 pixels in pickled batches."""

    pad = 4
    flip = True
    download_size = "about 170 MB"
    label_key: ClassVar[str]
    subfolder: ClassVar[str]
    train_files: ClassVar[tuple[str, ...]]
    test_file: ClassVar[str]

    def files(self, where: Path) -> list[Path]:
        """List the batch files, as the archive unpacks them."""
        return [where / self.subfolder / file for file in (*self.train_files, self.test_file)]

    def read(self, where: Path) -> tuple[Pair, Pair]:
        """Read every batch."""
        *batches, test = [self._read_batch(file) for file in self.files(where)]
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return (images, labels), test

    def _read_batch(self, file: Path) -> Pair:
        """Read one file: a row of 3072 bytes per image, all red, then green, then blue."""
        with file_errors(file):
            content = read_pickled_dict(read_bytes(file))
            if not {"data", self.label_key} <= content.keys():
                raise DataError(f"lacks data or {self.label_key}")
            rows = torch.from_numpy(uint8_array(content["data"]).copy())
            if rows.dim() != 2 or rows.shape[1] != 3 * 32 * 32:
                raise DataError(f"holds an array of shape {list(rows.shape)}, not [images, 3072]")
            labels = checked_labels(_integers(content[self.label_key]), rows, self.classes)
            return rows.view(-1, 3, 32, 32), labels

    def fetch(self, where: Path) -> None:
        """Download and unpack the archive, without torchvision's reader, which unpickles."""
        from torchvision import datasets

        info = getattr(datasets, self.name.upper())
        datasets.utils.download_and_extract_archive(
            info.url, str(where), filename=info.filename, md5=info.tgz_md5
        )


def _integers(values: object) -> Tensor:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise DataError("holds labels that are not a list of integers")
    try:
        return torch.tensor(values, dtype=torch.int64)
    except (OverflowError, RuntimeError) as problem:
        raise DataError(f"holds labels that are out of range ({problem})") from problem


class Cifar10(_Cifar):
    """60,000 colour photographs of 32 × 32 pixels in 10 classes.

    45,000 for training, 5,000 for validation, 10,000 for test; augmented by crops (padding 4) and
    flips. Reads cifar-10-batches-py/ in --data-dir.
    """

    name: ClassVar[str] = "cifar10"
    classes = 10
    label_key = "labels"
    subfolder = "cifar-10-batches-py"
    train_files = tuple(f"data_batch_{number}" for number in range(1, 6))
    test_file = "test_batch"


class Cifar100(_Cifar):
    """60,000 colour photographs of 32 × 32 pixels in 100 classes.

    45,000 for training, 5,000 for validation, 10,000 for test; augmented by crops (padding 4) and
    flips. Reads cifar-100-python/ in --data-dir.
    """

    name: ClassVar[str] = "cifar100"
    classes = 100
    label_key = "fine_labels"
    subfolder = "cifar-100-python"
    train_files = ("train",)
    test_file = "test"


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Register both."""
    return [Cifar10, Cifar100]
