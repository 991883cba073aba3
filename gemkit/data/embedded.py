"""The digits data set, which ships inside the package."""

import hashlib
from pathlib import Path
from typing import ClassVar

from safetensors.torch import load
from torch import Tensor

from gemkit.core.errors import DataError
from gemkit.core.tensors import Tensors
from gemkit.data.part import DatasetPart
from gemkit.data.source import Data, TensorSource
from gemkit.data.splits import channel_statistics, split_stratified
from gemkit.plugins.markers import hookimpl

DIGITS = Path(__file__).with_name("digits.safetensors")
DIGITS_SHA256 = "b9df9f0ed50574f8918a7edc0e06c9b9b447080dc48c262bf524d7a9c50e75b3"
_PEAK = 16.0
_SIZES = (1257, 180, 360)


class Digits(DatasetPart):
    """1,797 handwritten digits of 8 × 8 pixels from the UCI repository; needs no download.

    Always split into the same 1,257 for training, 180 for validation and 360 for test.
    Alpaydin & Kaynak (1998), Optical Recognition of Handwritten Digits, CC BY 4.0.
    """

    name: ClassVar[str] = "digits"

    def load(self, folder: Path | None) -> Data:
        """Read the copy in the package; `folder` is ignored."""
        tensors = read_verified(DIGITS, DIGITS_SHA256)
        images, labels = tensors["images"], tensors["labels"].long()
        # The split seed is fixed, so that all runs share the same test images.
        splits = split_stratified(labels, _SIZES, seed=0)
        mean, std = channel_statistics(images[splits[0]], _PEAK)

        def source(chosen: Tensor) -> TensorSource:
            return TensorSource(images[chosen], labels[chosen], mean, std, pad=1, peak=_PEAK)

        train, validation, test = map(source, splits)
        return Data(self.name, train, validation, test, classes=10, shape=(1, 8, 8))


def read_verified(path: Path, sha256: str) -> Tensors:
    """Read a safetensors file and verify its hash."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise DataError(
            f"cannot read {path}: {problem.strerror}; reinstall gemkit to restore it"
        ) from problem
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(
            f"{path} is damaged: its SHA-256 is {found[:16]}… instead of {sha256[:16]}…; "
            "reinstall gemkit to restore it"
        )
    return load(content)


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Register the embedded data set."""
    return [Digits]
