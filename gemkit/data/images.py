"""Build a data set from a list of image files, in memory if it fits, else streamed."""

import sys
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from gemkit.data.cache import cache_file, fingerprint, load_cached, save_cached
from gemkit.data.class_folders import ImageList
from gemkit.data.decode import decode_batches, dimensions, map_batches
from gemkit.data.file_source import FileSource, files_digest
from gemkit.data.source import Data, Source, TensorSource
from gemkit.data.splits import channel_statistics, subsample
from gemkit.data.standard import SplitDataset

MOST_MEMORY = 2 * 2**30
"""Bytes of decoded images that `memory="auto"` holds in memory."""
_LARGEST_NATIVE, _DEFAULT_SIZE = 64, 224
_SAMPLE = 2000
"""Number of training images used for the channel statistics."""
_BATCH = 64


class ImageDataset(SplitDataset):
    """A data set of image files."""

    memory: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="hold decoded images in memory; auto does up to 2 GiB. Batches are the same "
        "either way",
    )

    def from_files(self, listed: ImageList, size: int | None, pad: int | None, flip: bool) -> Data:
        """Split, read and normalise the listed images.

        Without `size`, small squares of equal size keep theirs. Without `pad`, crops are padded
        by an eighth of the size.
        """
        splits = self.make_splits(listed.labels, listed.groups)
        chosen = torch.unique(torch.cat(list(splits.values())))
        images, size = self._in_memory(listed, chosen.tolist(), size)
        sample = subsample(listed.labels, splits["train"], _SAMPLE)
        if images is None:
            pixels = torch.cat(list(_read(_files(listed, sample), size, "measuring images")))
        else:
            pixels = images[torch.searchsorted(chosen, sample)]
        mean, std = channel_statistics(pixels)
        pad = size // 8 if pad is None else pad
        sources: dict[str, Source] = {}
        for split, indices in splits.items():
            labels, files = listed.labels[indices], tuple(_files(listed, indices))
            if images is None:
                sources[split] = FileSource(files, labels, size, mean, std, pad=pad, flip=flip)
            else:
                pixels = images[torch.searchsorted(chosen, indices)]
                mark = files_digest(files)  # the same whether images are in memory or not
                sources[split] = TensorSource(
                    pixels, labels, mean, std, pad=pad, flip=flip, mark=mark
                )
        return Data(
            self.name,
            **sources,
            classes=len(listed.classes),
            shape=(3, size, size),
            class_names=listed.classes,
        )

    def _in_memory(
        self, listed: ImageList, chosen: Sequence[int], size: int | None
    ) -> tuple[Tensor | None, int]:
        """Return the images (None if they are to be streamed) and their size."""
        files = [listed.files[index] for index in chosen]
        if self.memory == "never":
            return None, size or _native_size(files)
        cache = cache_file(listed.root, [size, self.limit])
        key = fingerprint(listed, chosen)
        images = load_cached(cache, key, len(files))
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
        save_cached(cache, images, key)
        return images, size


def _files(listed: ImageList, indices: Tensor) -> list[str]:
    return [listed.files[index] for index in indices.tolist()]


def _batched(files: Sequence[str]) -> Iterator[Sequence[str]]:
    return (files[start : start + _BATCH] for start in range(0, len(files), _BATCH))


def _native_size(files: Sequence[str]) -> int:
    """Return the size of the images if all are small squares of equal size, else the default."""
    first = dimensions(files[0])
    if first[0] != first[1] or first[0] > _LARGEST_NATIVE:
        return _DEFAULT_SIZE
    sizes = (size for batch in map_batches(dimensions, _batched(files)) for size in batch)
    return first[0] if all(size == first for size in sizes) else _DEFAULT_SIZE


def _read(files: Sequence[str], size: int, task_name: str) -> Iterator[Tensor]:
    """Decode files in batches, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = not sys.stderr.isatty()
    with Progress(console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(task_name, total=len(files))
        for batch in decode_batches(_batched(files), size):
            bar.advance(task, len(batch))
            yield batch
