"""The contract of data sets: valid splits, every sample once, the same order for a seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch

from gemkit.core.errors import DataError
from gemkit.core.probe import IGNORED
from gemkit.data.part import DatasetPart
from gemkit.data.source import Data, Source
from gemkit.testing.clause import NotTriedError, clause, require

SPLITS = ("train", "validation", "test")


@contextmanager
def loaded(part: DatasetPart, folder: Path | None) -> Iterator[Data]:
    """Load the data set from a folder, or from an empty one, where it may raise a DataError.

    The cache of decoded images is temporary; the user's own is not touched.
    """
    with TemporaryDirectory() as own, patch.dict("os.environ", GEMKIT_CACHE=f"{own}/cache"):
        try:
            data = part.load(folder or Path(own))
        except DataError as error:
            if folder is not None:
                raise
            reason = str(error).partition("\n")[0].replace(own, "DIR")
            raise NotTriedError(
                f"it needs files ({reason}); give the contract a function that writes some, as in "
                f"contract({type(part).__name__}, files=write_files), or give check-plugin a "
                "folder that has them: --data-dir DIR"
            ) from error
        yield data


def read(source: Source, size: int, seed: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Read a whole split."""
    images, labels = zip(*source.batches(size, seed=seed), strict=True)
    return torch.cat(images), torch.cat(labels)


@clause(DatasetPart)
def missing_files_raise_a_data_error(part: DatasetPart, case: None) -> None:
    """With an empty folder it loads anyway, or raises a DataError."""
    try:
        with loaded(part, None):
            return
    except NotTriedError:
        return


@clause(DatasetPart, on_files=True)
def every_split_holds_images_and_labels(part: DatasetPart, folder: Path | None) -> None:
    """Splits give finite float32 images of the declared shape, and labels below `classes`.

    Inputs may also be int64 indices, and targets others than classes, if `classes` is None.
    """
    with loaded(part, folder) as data:
        require(isinstance(data, Data), f"it returned {type(data).__name__}")
        for name in SPLITS:
            check_split(name, getattr(data, name), data)


def check_split(name: str, source: Source, data: Data) -> None:
    """Compare the first batch and all labels of a split with what the data set declares."""
    require(len(source) > 0, f"{name} is empty")
    images, labels = next(iter(source.batches(16)))
    kinds = (torch.float32, torch.int64) if data.indices else (torch.float32,)
    require(images.dtype in kinds, f"{name} gives images of type {images.dtype}")
    require(
        tuple(images.shape[1:]) == data.shape,
        f"{name} gives images of shape {tuple(images.shape[1:])}, not {data.shape}",
    )
    require(bool(images.isfinite().all()), f"{name} gives images that are not finite")
    if data.classes is None:
        require(bool(labels.isfinite().all()), f"{name} gives targets that are not finite")
        return
    require(labels.dtype == torch.int64, f"{name} gives labels of type {labels.dtype}")
    known = source.targets()
    inside = (known >= 0) & (known < data.classes)
    if known.ndim > 1:  # places of a map that do not count
        inside |= known == IGNORED
    require(bool(inside.all()), f"{name} gives labels outside 0 to {data.classes - 1}")


@clause(DatasetPart, on_files=True)
def every_sample_comes_once_an_epoch(part: DatasetPart, folder: Path | None) -> None:
    """An epoch has `steps` batches and, shuffled or not, every label as often as `targets`."""
    with loaded(part, folder) as data:
        source = data.validation
        require(
            source.steps(7) == len(list(source.batches(7))), "steps is not the number of batches"
        )
        for seed in (None, 0):
            _, labels = read(source, 7, seed)
            known = source.targets()
            if len(known) < len(source):  # a stream knows those of its first batch
                require(len(labels) == len(source), "an epoch has another number of samples")
                continue
            counted = torch.equal(*(own.flatten().sort().values for own in (labels, known)))
            require(counted, "an epoch differs from the targets")


@clause(DatasetPart, on_files=True)
def the_same_seed_gives_the_same_order(part: DatasetPart, folder: Path | None) -> None:
    """Loading twice gives the same data, and the order depends on seed and epoch alone."""
    with loaded(part, folder) as one, loaded(part, folder) as other:
        for seed in (None, 0):
            first, second = (read(data.validation, 16, seed) for data in (one, other))
            same = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
            require(same, "two readings differ")
