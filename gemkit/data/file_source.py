"""A source that streams images from files, for data sets that do not fit in memory."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import tee

import torch
from torch import Tensor

from gemkit.core.atomic_io import open_plain
from gemkit.core.errors import DataError
from gemkit.data.decode import decode_batches
from gemkit.data.sampler import EpochSampler, SampledBatch
from gemkit.data.source import Pair
from gemkit.data.tensor_source import scale_and_shift, transform

_CPU = torch.device("cpu")
_SAMPLE = 256
"""Number of files of a split whose content is hashed for its fingerprint."""
_MOST_READ = 2**24
"""Bytes read of each of them."""


@dataclass(frozen=True, eq=False, repr=False)
class FileSource:
    """Image files and their labels; yields the same batches as a `TensorSource` of their pixels.

    Images are decoded to `size` × `size` pixels a few batches ahead. Batches are augmented and
    normalised on the device.
    """

    files: tuple[str, ...]
    labels: Tensor
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int = 0
    flip: bool = False
    device: torch.device = _CPU

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        return f"FileSource({len(self):,} image files as 3×{self.size}×{self.size}, {self.device})"

    def steps(self, size: int) -> int:
        """Count the batches of an epoch."""
        return -(-len(self) // size)

    def to(self, device: torch.device) -> FileSource:
        """Return this source with its batches on the device."""
        return replace(self, device=device)

    def targets(self) -> Tensor:
        """Return the label of every sample, in order."""
        return self.labels

    def digest(self) -> str:
        """Return the hash of the images for a fingerprint."""
        return files_digest(self.files)

    def batches(
        self,
        size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        augment: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> Iterator[Pair]:
        """Yield the batches of an epoch (see `Source.batches`)."""
        batches = EpochSampler(size, seed, epoch, augment, rank, world).batches(
            len(self), self.pad, flip=self.flip, device=_CPU
        )
        return self._read(batches)

    def _read(self, batches: Iterator[SampledBatch]) -> Iterator[Pair]:
        """Decode each batch, move it to the device, augment and normalise it."""
        to_decode, to_transform = tee(batches)
        files = ([self.files[index] for index in batch.indices.tolist()] for batch in to_decode)
        raw = decode_batches(files, self.size)
        for images, (indices, draws) in zip(raw, to_transform, strict=True):
            moved = None if draws is None else draws.to(self.device)
            batch = transform(images.to(self.device), moved, self.pad, self._scale_and_shift)
            yield batch, self.labels[indices].to(self.device)

    @cached_property
    def _scale_and_shift(self) -> Tensor:
        return scale_and_shift(self.mean, self.std, 255.0, 3).to(self.device)


def files_digest(files: Sequence[str]) -> str:
    """Hash names and sizes of all files, and the content of up to 256 of them, spread evenly.

    Names are relative to the common folder, so moving it changes nothing. The first and the last
    file are always read, at most 16 MiB of each.
    """
    common = os.path.commonprefix(files)  # noqa: RUF071 - cut at the last separator below
    root = len(common.rpartition(os.sep)[0])
    last, count = len(files) - 1, min(len(files), _SAMPLE)
    sample = {index * last // max(count - 1, 1) for index in range(count)}
    sha = hashlib.sha256()
    for index, file in enumerate(files):
        try:
            status = os.stat(file)  # noqa: PTH116 - Path objects are slow for so many files
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"cannot read {file}: it is not a regular file")
            line = f"{file[root:]}\0{status.st_size}\0"
            sha.update(line.encode("utf-8", "surrogateescape"))
            if index in sample:
                with open_plain(file) as content:
                    sha.update(content.read(_MOST_READ))
        except OSError as problem:
            raise DataError(f"cannot read {file}: {problem.strerror}") from problem
    return sha.hexdigest()
