"""From image files to tensors: decoded side by side, in order, and never larger than expected.

Decoding leaves Python's lock, so threads are enough: nothing is copied between processes, and
nothing has to be started before the first image.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gemkit.errors import DataError, GemkitError
from gemkit.files import open_plain

FORMATS = {
    **{".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP", ".gif": "GIF"},
    **{".webp": "WEBP", ".ppm": "PPM", ".pgm": "PPM", ".tif": "TIFF", ".tiff": "TIFF"},
}
"""Names of image files end in one of these; what is inside may be any of these formats."""
MOST_PIXELS = 50_000_000
_AHEAD = 2
"""Batches that are decoded while another is in use."""
_WORKERS = min(16, os.cpu_count() or 1)
Result = TypeVar("Result")


def decode(file: str, size: int) -> Tensor:
    """Read one image as uint8 [3, size, size], stretched to a square; larger ones are refused."""
    with _opened(file) as image:
        image.draft("RGB", (size, size))  # a JPEG is decoded no finer than needed
        square = _eight_bits(image, file).convert("RGB")
        if square.size != (size, size):
            square = square.resize((size, size), reducing_gap=3.0)
        return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def _eight_bits(image: Any, file: str) -> Any:  # noqa: ANN401
    """Scale 16 bits to 8, because converting clips them; refuse values without a known range."""
    # Pillow reads a PGM file of more than 8 bits as mode I, scaled to 16 of them.
    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PPM"):
        from PIL import Image

        values = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if image.mode in {"I", "F"}:
        raise DataError(
            f"{file} has pixels of mode {image.mode}, 32 bits whose black and white are not known; "
            "save it with 8 or 16 bits"
        )
    return image


def dimensions(file: str) -> tuple[int, int]:
    """Return width and height of an image, from the beginning of its file."""
    with _opened(file) as image:
        width, height = image.size
    return width, height


@contextmanager
def _opened(file: str) -> Iterator[Any]:
    """Open an image, look at its size before anything is decoded, and name the file in errors."""
    from PIL import Image, UnidentifiedImageError

    formats = sorted(set(FORMATS.values()))
    try:
        with open_plain(file) as plain, Image.open(plain, formats=formats) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise DataError(
                    f"{file} has {width}×{height} pixels, more than the {MOST_PIXELS:,} that an "
                    "image may have; make it smaller"
                )
            yield image
    except GemkitError:
        raise
    except UnidentifiedImageError as problem:
        raise DataError(
            f"{file} is not an image that can be decoded (its format is unknown); replace or "
            "remove it"
        ) from problem
    except Exception as problem:  # a damaged file can make a decoder fail in any way
        if isinstance(problem, OSError) and problem.strerror:
            raise DataError(f"cannot read {file}: {problem.strerror}") from problem
        raise DataError(
            f"{file} is not an image that can be decoded ({problem}); replace or remove it"
        ) from problem


def each(work: Callable[[str], Result], batches: Iterable[Sequence[str]]) -> Iterator[list[Result]]:
    """Do some work on every file, a few batches ahead of whoever takes the results, in order."""
    pool = ThreadPoolExecutor(_WORKERS)
    started: deque[list[Future[Result]]] = deque()
    coming = iter(batches)
    try:
        while True:
            for batch in islice(coming, 1 + _AHEAD - len(started)):
                started.append([pool.submit(work, file) for file in batch])
            if not started:
                return
            yield [future.result() for future in started.popleft()]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def decoded(batches: Iterable[Sequence[str]], size: int) -> Iterator[Tensor]:
    """Decode batch after batch of files into uint8 [N, 3, size, size]."""
    for images in each(partial(decode, size=size), batches):
        yield torch.stack(images) if images else torch.empty(0, 3, size, size, dtype=torch.uint8)
