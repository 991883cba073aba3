"""Read batches from data sets and loaders of PyTorch, one after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import repeat
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from gemkit.core.errors import DataError
from gemkit.data.sampler import EpochSampler

Collate = Callable[[list[Any]], Any]
"""A function that makes one batch of a list of samples."""
_CPU = torch.device("cpu")
EMPTY = object()
"""Stands for the share of a process that has no sample of a batch."""
_LOOK = 64
"""Samples of a data set in its first look."""


class Reader(Protocol):
    """Where the batches of a source come from."""

    is_cut: bool
    """Whether it makes batches of the asked size, with the share of the asked process."""

    @property
    def samples(self) -> int | None:
        """How many samples there are, if known."""
        ...

    def look(self) -> Iterable[Any]:
        """Return batches, to know what they are like from the first."""
        ...

    def steps(self, size: int) -> int | None:
        """Return the number of batches in an epoch, if known."""
        ...

    def read(self, which: EpochSampler) -> Iterable[Any]:
        """Return the batches of an epoch; `EMPTY` stands for an empty share."""
        ...


@final
class DatasetReader:
    """Samples of a map-style data set, in gemkit's own order."""

    is_cut = True

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401 - anything with __len__ and __getitem__
        indices: Tensor,
        collate: Collate | None,
        workers: int,
    ) -> None:
        self._dataset = dataset
        self._indices = indices
        self._collate = collate
        self._workers = workers
        self.samples = len(indices)

    def look(self) -> Iterable[Any]:
        """Return the first samples, read in this process."""
        return self._loader([self._indices[:_LOOK].tolist()], 0)

    def steps(self, size: int) -> int:
        """Return the number of batches in an epoch."""
        return -(-self.samples // size)

    def read(self, which: EpochSampler) -> Iterable[Any]:
        """Return the batches of an epoch, of which only this process's samples are fetched."""
        chosen = which.batches(self.samples, 0, flip=False, device=_CPU)
        last = (self.samples - 1) % which.size + 1
        empty = 0 if which.rank < last else 1
        if which.rank >= which.size:
            empty = self.steps(which.size)
        return self._fetched((self._indices[own.indices].tolist() for own in chosen), empty)

    def _fetched(self, batches: Iterator[list[int]], empty: int) -> Iterator[Any]:
        """Yield what a process has of every batch; of so many at the end, it has nothing."""
        yield from self._loader((batch for batch in batches if batch), self._workers)
        yield from repeat(EMPTY, empty)

    def _loader(self, batches: Iterable[list[int]], workers: int) -> Iterable[Any]:
        """Let torch's loader fetch, with `__getitems__` if there is one."""
        return DataLoader(
            self._dataset,
            batch_sampler=batches,  # any iterable of lists will do
            num_workers=workers,
            collate_fn=self._collate,
        )


@final
class LoaderReader:
    """Batches of a loader, or of another iterable, as they come."""

    is_cut = False

    def __init__(self, loader: Iterable[Any], steps: int | None, title: str) -> None:
        self._title = title
        self._loader = loader
        self._given = steps
        self._declared = steps or _length(loader)
        self.samples = _samples(loader) if steps is None else None

    def look(self) -> Iterable[Any]:
        """Return the batches themselves."""
        return self._whole()

    def steps(self, size: int) -> int | None:
        """Return the number of batches in an epoch, whatever their size."""
        return self._declared

    def read(self, which: EpochSampler) -> Iterator[Any]:
        """Yield the batches of an epoch, all of them in every process."""
        count = 0
        for count, batch in enumerate(self._whole(), start=1):
            yield batch
            if count == self._given:
                return
        if self._declared is not None and count < self._declared:
            raise DataError(
                f"{self._title}: it ended after {count} of {self._declared} batches; give a loader "
                "with as many in every epoch as its length, or their number as steps="
            )

    def _whole(self) -> Iterable[Any]:
        """Return the loader, or a copy where a second iteration would restart the first."""
        if not isinstance(self._loader, DataLoader) or not self._loader.persistent_workers:
            return self._loader
        own = copy.copy(self._loader)
        own._iterator = None
        return own


def _length(loader: Iterable[Any]) -> int | None:
    """Return how many batches a loader says it has."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except (TypeError, NotImplementedError):  # of an iterable data set, for one
        return None


def _samples(loader: Iterable[Any]) -> int | None:
    """Return how many samples the batches of a loader hold, if it is of the usual kind."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    size, sampler = loader.batch_size, loader.sampler
    if size is None or not isinstance(sampler, Sized):
        return None
    count = len(sampler)
    return count - count % size if loader.drop_last else count


def check_loader(loader: object, where: str, steps: int | None) -> Iterable[Any]:
    """Return an iterable of batches that can be read again; refuse others, at `where`."""
    kind = type(loader).__name__
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise DataError(f"{where}: {kind} holds samples, not batches; use Data.of_datasets")
    if isinstance(loader, IterableDataset):
        raise DataError(
            f"{where}: {kind} yields samples; batch them with DataLoader(..., batch_size=64)"
        )
    if not isinstance(loader, Iterable) or isinstance(loader, str | dict | Tensor):
        raise DataError(f"{where}: {kind} is no DataLoader and no other iterable of batches")
    if isinstance(loader, Iterator):
        raise DataError(
            f"{where}: {kind} can be read only once, and gemkit reads it in every epoch; give a "
            "DataLoader, a list of batches, or an object whose __iter__ begins again"
        )
    if isinstance(getattr(loader, "sampler", None), DistributedSampler):
        raise DataError(
            f"{where}: its DistributedSampler gives every process other batches, and gemkit shares "
            "every batch among the processes by itself; leave the sampler out"
        )
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise DataError(f"{where}: steps={steps!r} is no number of batches; give 1 or more")
    return loader


def check_dataset(dataset: object, where: str) -> None:
    """Refuse what is no map-style data set; `where` begins the message."""
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader | IterableDataset):
        raise DataError(f"{where}: {kind} has no samples by number; use Data.of_loaders")
    if isinstance(dataset, tuple) and all(isinstance(own, Tensor) for own in dataset):
        raise DataError(f"{where}: these are tensors; use Data.of_tensors")
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise DataError(
            f"{where}: {kind} is no map-style data set, with __len__ and __getitem__; use "
            "Data.of_tensors for arrays and Data.of_loaders for batches"
        )
    if isinstance(dataset, str | dict | Tensor):
        raise DataError(
            f"{where}: {kind} is no data set of samples; use Data.of_tensors for arrays"
        )
    if not len(dataset):
        raise DataError(f"{where}: {kind} is empty")
