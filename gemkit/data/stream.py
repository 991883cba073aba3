"""A source that reads its images from files, batch by batch, when they do not fit in memory."""

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

from gemkit.data.decode import decoded
from gemkit.data.order import Epoch, Turn
from gemkit.data.source import Pair, finished, scale_and_shift
from gemkit.errors import DataError
from gemkit.files import open_plain

_CPU = torch.device("cpu")
_SAMPLE = 256
"""Files of a split whose content is part of its fingerprint."""
_MOST_READ = 2**24
"""Bytes read of each."""


@dataclass(frozen=True, eq=False, repr=False)
class FileSource:
    """Image files and their labels; makes the very batches of a `TensorSource` of their pixels.

    Images are decoded to `size` × `size` pixels a few batches ahead; crops, flips and scaling
    then happen on the device, for a whole batch at once.
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
        """Return what stands for the images in a fingerprint."""
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
        """Go through every sample once (see `Source.batches`)."""
        turns = Epoch(size, seed, epoch, augment, rank, world).turns(
            len(self), self.pad, flip=self.flip, device=_CPU
        )
        return self._read(turns)

    def _read(self, turns: Iterator[Turn]) -> Iterator[Pair]:
        """Decode, move and finish batch after batch."""
        to_decode, to_finish = tee(turns)
        files = ([self.files[number] for number in turn.chosen.tolist()] for turn in to_decode)
        raw = decoded(files, self.size)
        for images, (chosen, draws) in zip(raw, to_finish, strict=True):
            moved = None if draws is None else draws.to(self.device)
            batch = finished(images.to(self.device), moved, self.pad, self._scale_and_shift)
            yield batch, self.labels[chosen].to(self.device)

    @cached_property
    def _scale_and_shift(self) -> Tensor:
        return scale_and_shift(self.mean, self.std, 255.0, 3).to(self.device)


def files_digest(files: Sequence[str]) -> str:
    """Hash names and sizes of files in order, and the content of up to 256 spread evenly over them.

    Names count from the folder that all files share, so moving it changes nothing. The first and
    the last file are always read. Of a very large file only the first 16 MiB are.
    """
    common = os.path.commonprefix(files)  # noqa: RUF071 - cut where a name begins
    root = len(common.rpartition(os.sep)[0])
    last, count = len(files) - 1, min(len(files), _SAMPLE)
    sample = {number * last // max(count - 1, 1) for number in range(count)}
    sha = hashlib.sha256()
    for number, file in enumerate(files):
        try:
            status = os.stat(file)  # noqa: PTH116 - objects for so many paths cost seconds
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"cannot read {file}: it is not a regular file")
            line = f"{file[root:]}\0{status.st_size}\0"
            sha.update(line.encode("utf-8", "surrogateescape"))
            if number in sample:
                with open_plain(file) as content:
                    sha.update(content.read(_MOST_READ))
        except OSError as problem:
            raise DataError(f"cannot read {file}: {problem.strerror}") from problem
    return sha.hexdigest()
