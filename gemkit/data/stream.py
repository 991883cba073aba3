"""Sources that read batches when they are needed: data sets, loaders, iterables of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from gemkit.core.errors import DataError, GemkitError
from gemkit.core.memory import problem_of_workers
from gemkit.core.probe import Batch
from gemkit.core.raised import described_with_place
from gemkit.core.tensors import generator, is_index
from gemkit.data.batch import Split, as_batch, as_input, check_values
from gemkit.data.fingerprint import tensor_digest
from gemkit.data.own_random import OwnRandom
from gemkit.data.readers import EMPTY, Reader
from gemkit.data.sampler import EpochSampler

_CPU = torch.device("cpu")


@final
@dataclass(frozen=True, eq=False, repr=False)
class StreamSource:
    """Batches that are read one by one, and not held in memory.

    Samplers and random transforms draw random numbers that depend on seed and epoch alone.
    """

    reader: Reader
    title: str
    """The data set and the split, for messages."""
    first: Batch
    """The first batch, on the CPU."""
    is_fixed: bool
    """Whether the first batch was the same when it was read again."""
    split: Split | None = None
    classes: int | None = None
    device: torch.device = _CPU

    def __len__(self) -> int:
        """Return the number of samples, or of those in as many full batches as are known."""
        return self.samples or (self.reader.steps(0) or 1) * len(self.first[1])

    @property
    def samples(self) -> int | None:
        """The number of samples, if it is known without reading them."""
        if self.reader.is_cut:
            return self.reader.samples
        size, steps = len(self.first[1]), self.reader.steps(0) or 1
        known = self.reader.samples or 0
        return known if (steps - 1) * size < known <= steps * size else None

    def __repr__(self) -> str:
        kind = str(self.first[0].dtype).removeprefix("torch.")
        shape = "×".join(map(str, self.first[0].shape[1:]))
        return f"StreamSource({self.title}: {kind} inputs of {shape}, {self.device})"

    @property
    def own_size(self) -> int | None:
        """The size of the batches, if the loader decides it."""
        return None if self.reader.is_cut else len(self.first[1])

    @property
    def kind(self) -> str:
        """What must be the same in all batches and splits: number formats and dimensions."""
        return _kind(self.first)

    @property
    def are_indices(self) -> bool:
        """Whether inputs are indices, such as tokens, rather than values."""
        return is_index(self.first[0])

    def steps(self, size: int) -> int:
        """Return the number of batches in an epoch."""
        steps = self.reader.steps(size)
        if steps is None:
            raise DataError(
                f"{self.title}: the loader has no length, so the number of batches in an epoch is "
                "not known; give it, as in Data.of_loaders(..., steps=100)"
            )
        return steps

    def to(self, device: torch.device) -> StreamSource:
        """Return this source with its batches on the device."""
        return replace(self, device=device)

    def targets(self) -> Tensor:
        """Return the targets of the first batch."""
        return self.first[1]

    def digest(self) -> str:
        """Return the hash of the first inputs, or of their kind if they are not always the same."""
        return _digest(self.first[0], self.is_fixed)

    def targets_digest(self) -> str:
        """Return the hash of the first targets, or of their kind."""
        return _digest(self.first[1], self.is_fixed)

    def batches(
        self,
        size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        augment: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> Iterator[Batch]:
        """Yield the batches of an epoch (see `Source.batches`); a loader's have its own size."""
        if world > 1 and not self.is_fixed:
            raise DataError(
                f"{self.title}: its batches differ whenever they are read, so {world} processes "
                f"would not share the same; use one process, or {self.way_out}"
            )
        raw = self.reader.read(EpochSampler(size, seed, epoch, False, rank, world))
        every = slice(None) if self.reader.is_cut else slice(rank, None, world)
        # Processes that fetch samples of their own draw random transforms of their own.
        turn = f"{epoch}, process {rank}" if rank and self.reader.is_cut else str(epoch)
        return self._placed(self._read(raw, seed or 0, turn), every)

    def _placed(self, batches: Iterator[Batch], every: slice) -> Iterator[Batch]:
        for inputs, targets in batches:
            yield inputs[every].to(self.device), targets[every].to(self.device)

    @property
    def way_out(self) -> str:
        """What makes its batches the same for the same seed."""
        if self.reader.is_cut:
            return "let the data set draw from the global generators of torch, NumPy and Python"
        return "leave out the loader's own generator, or use Data.of_datasets"

    def _read(self, raw: Iterable[Any], seed: int, turn: str) -> Iterator[Batch]:
        """Check every batch; what does not suit the first one would fail in the network."""
        for number, batch in enumerate(read(raw, self.split, self.title, seed, turn)):
            where = f"{self.title}, batch {number}"
            if batch is None:
                yield self.first[0][:0], self.first[1][:0]
                continue
            if (kind := _kind(batch)) != self.kind:
                raise DataError(f"{where}: it is {kind}, and the first batch is {self.kind}")
            check_values(batch[1], self.classes, where)
            yield batch


def stream(
    reader: Reader, title: str, split: Split | None = None, classes: int | None = None
) -> StreamSource:
    """Make a source; its first batch is read twice, to know whether it is always the same."""
    first, again = (next(read(reader.look(), split, title, 0, "0"), None) for _ in range(2))
    if first is None:
        raise DataError(f"{title}: there is no batch in it; look at its data set, and at drop_last")
    if again is None:
        raise DataError(
            f"{title}: it can be read only once, and gemkit reads it in every epoch; give an "
            "object whose __iter__ begins again"
        )
    check_values(first[1], classes, f"{title}, batch 0")
    first, again = ((inputs.cpu(), targets.cpu()) for inputs, targets in (first, again))
    if not first[0].isfinite().any():
        raise DataError(
            f"{title}, batch 0: no value of its inputs is finite; repair or remove them"
        )
    # By their bits, because NaN is not equal to itself.
    same = all(
        tensor_digest(one) == tensor_digest(other) for one, other in zip(first, again, strict=True)
    )
    return StreamSource(reader, title, first, same, split, classes)


def read(
    raw: Iterable[Any], split: Split | None, title: str, seed: int, turn: str
) -> Iterator[Batch | None]:
    """Read batches with random numbers of their own; an error names the batch."""
    chance, number, end = OwnRandom(generator(seed, f"batches {turn}").initial_seed()), 0, object()
    iterator: Iterator[Any] | None = None
    while True:
        where = f"{title}, batch {number}"
        try:
            with chance.in_use():
                iterator = iter(raw) if iterator is None else iterator
                batch = next(iterator, end)
                if batch is end:
                    return
                found = None if batch is EMPTY else as_batch(batch, split, where)
                found = found and (as_input(found[0], where), found[1])
        except GemkitError:
            raise
        except (Exception, SystemExit) as error:  # a user's data set may raise anything
            if problem := problem_of_workers(error):
                raise DataError(f"{where} cannot be read: {problem}") from error
            raise DataError(
                f"{where} cannot be read ({described_with_place(error)}); correct the data set, "
                "or the function that collates its samples"
            ) from error
        yield found
        number += 1


def _kind(batch: Batch) -> str:
    """Describe what must be the same in all batches."""
    inputs, targets = (
        f"{str(own.dtype).removeprefix('torch.')} of {own.ndim} dimensions" for own in batch
    )
    return f"inputs of {inputs} and targets of {targets}"


def _digest(tensor: Tensor, is_fixed: bool) -> str:
    if is_fixed:
        return tensor_digest(tensor)
    kind = f"{tensor.dtype} {list(tensor.shape)[1:]}"
    return hashlib.sha256(kind.encode()).hexdigest()
