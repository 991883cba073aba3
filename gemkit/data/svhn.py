"""Street View House Numbers (SVHN), from its MATLAB files."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from gemkit.core.errors import DataError
from gemkit.data.binary import file_errors, read_bytes
from gemkit.data.matlab import read_matrices
from gemkit.data.part import DatasetPart
from gemkit.data.source import Pair
from gemkit.data.standard import MemoryDataset, checked_labels
from gemkit.plugins.markers import hookimpl


class Svhn(MemoryDataset):
    """99,289 colour photographs of house-number digits, 32 × 32 pixels.

    65,931 for training, 7,326 for validation, 26,032 for test; augmented by crops (padding 2), not
    by flips. Reads train_32x32.mat and test_32x32.mat in --data-dir.
    """

    name: ClassVar[str] = "svhn"
    classes = 10
    pad = 2
    flip = False
    download_size = "about 250 MB"

    def files(self, where: Path) -> list[Path]:
        """List the training and the test file."""
        return [where / "train_32x32.mat", where / "test_32x32.mat"]

    def read(self, where: Path) -> tuple[Pair, Pair]:
        """Read both files."""
        train, test = self.files(where)
        return self._read_pair(train), self._read_pair(test)

    def _read_pair(self, file: Path) -> Pair:
        """Read one file: X is height × width × colour × image; y uses 10 for the digit 0."""
        with file_errors(file):
            found = read_matrices(read_bytes(file), {"X", "y"})
            if not {"X", "y"} <= found.keys():
                raise DataError("lacks X or y")
            raw, labels = found["X"], found["y"].ravel()
            if raw.dtype != np.uint8 or raw.ndim != 4 or raw.shape[1:] != (3, 32, 32):
                raise DataError(
                    f"holds X as {raw.dtype} {raw.shape[::-1]}, not uint8 (32, 32, 3, N)"
                )
            if not np.isin(labels, range(1, 11)).all():
                raise DataError("has labels that are not 1 to 10")
            images = torch.from_numpy(np.ascontiguousarray(raw.swapaxes(2, 3)))
            digits = torch.from_numpy(labels.astype(np.int64)) % 10
            return images, checked_labels(digits, images, self.classes)

    def fetch(self, where: Path) -> None:
        """Download both files."""
        from torchvision import datasets

        for split in ("train", "test"):
            url, file, md5 = datasets.SVHN.split_list[split]
            datasets.utils.download_url(url, str(where), file, md5)


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Register SVHN."""
    return [Svhn]
