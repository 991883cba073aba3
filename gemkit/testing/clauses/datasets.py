"""The contract of data sets: sound splits, every sample once, the same order for the same seed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from gemkit.data.source import Data, Source
from gemkit.errors import DataError
from gemkit.parts import DatasetPart
from gemkit.testing.clause import NotCheckedError, clause, require

SPLITS = ("train", "validation", "test")


def load(part: DatasetPart) -> Data:
    """Load the data set with an empty folder, or tell that it needs files."""
    with TemporaryDirectory() as folder:
        try:
            return part.load(Path(folder))
        except DataError as error:
            raise NotCheckedError(f"it needs files that are not here: {error}") from error


def read(source: Source, size: int, seed: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Read a whole split."""
    images, labels = zip(*source.batches(size, seed=seed), strict=True)
    return torch.cat(images), torch.cat(labels)


@clause(DatasetPart)
def what_is_missing_is_told_in_words(part: DatasetPart, case: None) -> None:
    """With nothing in the folder it loads all the same, or raises a DataError."""
    try:
        load(part)
    except NotCheckedError:
        return


@clause(DatasetPart)
def every_split_holds_images_and_labels(part: DatasetPart, case: None) -> None:
    """Splits give finite float32 images of the stated shape, and labels below `classes`."""
    data = load(part)
    require(isinstance(data, Data), f"it returned {type(data).__name__}")
    for name in SPLITS:
        source = getattr(data, name)
        require(len(source) > 0, f"{name} is empty")
        images, labels = next(iter(source.batches(16)))
        require(images.dtype == torch.float32, f"{name} gives images of type {images.dtype}")
        require(
            tuple(images.shape[1:]) == data.shape,
            f"{name} gives images of shape {tuple(images.shape[1:])}, not {data.shape}",
        )
        require(bool(images.isfinite().all()), f"{name} gives images that are not finite")
        require(labels.dtype == torch.int64, f"{name} gives labels of type {labels.dtype}")
        inside = (source.targets() >= 0) & (source.targets() < data.classes)
        require(bool(inside.all()), f"{name} gives labels outside 0 to {data.classes - 1}")


@clause(DatasetPart)
def every_sample_comes_once_an_epoch(part: DatasetPart, case: None) -> None:
    """An epoch has `steps` batches and, shuffled or not, every label as often as `targets`."""
    source = load(part).validation
    require(source.steps(7) == len(list(source.batches(7))), "steps does not count the batches")
    for seed in (None, 0):
        _, labels = read(source, 7, seed)
        counted = torch.equal(labels.sort().values, source.targets().sort().values)
        require(counted, "an epoch differs from the targets")


@clause(DatasetPart)
def the_same_seed_gives_the_same_order(part: DatasetPart, case: None) -> None:
    """Loading twice gives the same data, and the order depends on seed and epoch alone."""
    one, other = load(part).validation, load(part).validation
    for seed in (None, 0):
        first, second = read(one, 16, seed), read(other, 16, seed)
        same = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        require(same, "two readings differ")
