"""Street View House Numbers, from the MATLAB files it is published as."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from gemkit.data.binary import read_bytes, reading
from gemkit.data.matlab import read_matrices
from gemkit.data.source import Pair
from gemkit.data.standard import MemoryDataset, checked_labels
from gemkit.errors import DataError
from gemkit.hookspecs import hookimpl
from gemkit.parts import DatasetPart


class Svhn(MemoryDataset):
    """99,289 digits of house numbers, photographed, in 32 × 32 pixels of colour.

    65,931 for training, 7,326 for validation, 26,032 for test; trained with crops (padding 2),
    never mirrored. Reads train_32x32.mat and test_32x32.mat in --data-dir.
    """

    name: ClassVar[str] = "svhn"
    classes = 10
    pad = 2
    flip = False
    traffic = "about 250 MB"

    def files(self, where: Path) -> list[Path]:
        """List the file for training and the one for test."""
        return [where / "train_32x32.mat", where / "test_32x32.mat"]

    def read(self, where: Path) -> tuple[Pair, Pair]:
        """Read both files."""
        train, test = self.files(where)
        return self._pair(train), self._pair(test)

    def _pair(self, file: Path) -> Pair:
        """Read one file: X is height × width × colour × image, y calls the digit nought 10."""
        with reading(file):
            found = read_matrices(read_bytes(file), {"X", "y"})
            if not {"X", "y"} <= found.keys():
                raise DataError("lacks X or y")
            raw, labels = found["X"], found["y"].ravel()
            if raw.dtype != np.uint8 or raw.ndim != 4 or raw.shape[1:] != (3, 32, 32):
                raise DataError(
                    f"holds X as {raw.dtype} {raw.shape[::-1]}, not bytes (32, 32, 3, N)"
                )
            if not np.isin(labels, range(1, 11)).all():
                raise DataError("has labels that are not 1 to 10")
            images = torch.from_numpy(np.ascontiguousarray(raw.swapaxes(2, 3)))
            digits = torch.from_numpy(labels.astype(np.int64)) % 10
            return images, checked_labels(digits, images, self.classes)

    def fetch(self, where: Path) -> None:
        """Fetch both files; torchvision's own reader, which trusts what they say, is not used."""
        from torchvision import datasets

        for split in ("train", "test"):
            url, file, md5 = datasets.SVHN.split_list[split]
            datasets.utils.download_url(url, str(where), file, md5)


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Offer it."""
    return [Svhn]
