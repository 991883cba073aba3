"""From a list of image files to a data set: in memory where it fits, else read as it goes."""

import sys
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from gemkit.data.cache import cache_file, fingerprint, recall, remember
from gemkit.data.decode import decoded, dimensions, each
from gemkit.data.listing import Listing
from gemkit.data.source import Data, Source, TensorSource
from gemkit.data.splits import channel_statistics, some
from gemkit.data.standard import SplitDataset
from gemkit.data.stream import FileSource, files_digest

MOST_MEMORY = 2 * 2**30
"""Bytes of decoded images that are held in memory unasked."""
_LARGEST_NATIVE, _USUAL = 64, 224
_SAMPLE = 2000
"""Training images whose channel statistics normalise a data set."""
_BATCH = 64


class ImageDataset(SplitDataset):
    """A data set of image files."""

    memory: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="hold all images in memory, decoded; auto does up to 2 GiB. It changes the "
        "speed, not the batches",
    )

    def from_files(self, listing: Listing, size: int | None, pad: int | None, flip: bool) -> Data:
        """Split, read and normalise the listed images.

        Without a `size` they keep their own if that is small, square and common to all; without
        `pad`, crops move by up to an eighth of it.
        """
        parts = self.divide(listing.labels, listing.groups)
        chosen = torch.unique(torch.cat(list(parts.values())))
        images, size = self._in_memory(listing, chosen.tolist(), size)
        sample = some(listing.labels, parts["train"], _SAMPLE)
        if images is None:
            pixels = torch.cat(list(_read(_files(listing, sample), size, "measuring images")))
        else:
            pixels = images[torch.searchsorted(chosen, sample)]
        mean, std = channel_statistics(pixels)
        pad = size // 8 if pad is None else pad
        sources: dict[str, Source] = {}
        for part, own in parts.items():
            labels, files = listing.labels[own], tuple(_files(listing, own))
            if images is None:
                sources[part] = FileSource(files, labels, size, mean, std, pad=pad, flip=flip)
            else:
                pixels = images[torch.searchsorted(chosen, own)]
                mark = files_digest(files)  # the same whether images are in memory or not
                sources[part] = TensorSource(
                    pixels, labels, mean, std, pad=pad, flip=flip, mark=mark
                )
        return Data(
            self.name,
            **sources,
            classes=len(listing.classes),
            shape=(3, size, size),
            class_names=listing.classes,
        )

    def _in_memory(
        self, listing: Listing, chosen: Sequence[int], size: int | None
    ) -> tuple[Tensor | None, int]:
        """Return the decoded images, from the cache or the files, or None to stream; and a size."""
        files = [listing.files[number] for number in chosen]
        if self.memory == "never":
            return None, size or _native_size(files)
        cache = cache_file(listing.root, [size, self.limit])
        mark = fingerprint(listing, chosen)
        images = recall(cache, mark, len(files))
        if images is not None:
            return images, images.shape[-1]
        size = size or _native_size(files)
        if self.memory == "auto" and len(files) * 3 * size * size > MOST_MEMORY:
            return None, size
        images = torch.empty(len(files), 3, size, size, dtype=torch.uint8)
        done = 0
        for batch in _read(files, size, "decoding images"):
            images[done : done + len(batch)] = batch
            done += len(batch)
        remember(cache, images, mark)
        return images, size


def _files(listing: Listing, chosen: Tensor) -> list[str]:
    return [listing.files[number] for number in chosen.tolist()]


def _batched(files: Sequence[str]) -> Iterator[Sequence[str]]:
    return (files[start : start + _BATCH] for start in range(0, len(files), _BATCH))


def _native_size(files: Sequence[str]) -> int:
    """Return the size of the images if all are the same small square, else the usual one."""
    first = dimensions(files[0])
    if first[0] != first[1] or first[0] > _LARGEST_NATIVE:
        return _USUAL
    sizes = (size for batch in each(dimensions, _batched(files)) for size in batch)
    return first[0] if all(size == first for size in sizes) else _USUAL


def _read(files: Sequence[str], size: int, doing: str) -> Iterator[Tensor]:
    """Decode files in batches; where somebody watches, show how far it is."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    unseen = not sys.stderr.isatty()
    with Progress(console=console, transient=True, disable=unseen) as bar:
        task = bar.add_task(doing, total=len(files))
        for batch in decoded(_batched(files), size):
            bar.advance(task, len(batch))
            yield batch
