"""The digits, which ship inside the package: as images, and as signals."""

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
        images, labels = _images_and_labels()
        return _data(self.name, images, labels, pad=1)


class DigitRows(DatasetPart):
    """The digits as signals: a channel for every row of pixels, a step for every column.

    The same digits as in `digits`, in the same splits, each as 8 channels of 8 steps.
    """

    name: ClassVar[str] = "digit_rows"

    def load(self, folder: Path | None) -> Data:
        """Read the copy in the package; `folder` is ignored."""
        images, labels = _images_and_labels()
        return _data(self.name, images.flatten(1, 2), labels)


def _images_and_labels() -> tuple[Tensor, Tensor]:
    tensors = read_verified(DIGITS, DIGITS_SHA256)
    return tensors["images"], tensors["labels"].long()


def _data(name: str, inputs: Tensor, labels: Tensor, pad: int = 0) -> Data:
    """Split and normalise; the split seed is fixed, so that all runs share the same test digits."""
    splits = split_stratified(labels, _SIZES, seed=0)
    mean, std = channel_statistics(inputs[splits[0]], _PEAK)

    def source(chosen: Tensor) -> TensorSource:
        return TensorSource(inputs[chosen], labels[chosen], mean, std, pad=pad, peak=_PEAK)

    train, validation, test = map(source, splits)
    return Data(name, train, validation, test, classes=10, shape=tuple(inputs.shape[1:]))


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
    """Register the embedded data."""
    return [Digits, DigitRows]
