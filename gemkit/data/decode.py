"""Decode image files into tensors, in parallel and in order, with a limit on their size.

Pillow releases the GIL while it decodes, so threads are enough.
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

from gemkit.core.atomic_io import open_plain
from gemkit.core.errors import DataError, GemkitError

FORMATS = {
    **{".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP", ".gif": "GIF"},
    **{".webp": "WEBP", ".ppm": "PPM", ".pgm": "PPM", ".tif": "TIFF", ".tiff": "TIFF"},
}
"""Suffixes of image files. A file may hold any of these formats, whatever its suffix."""
MOST_PIXELS = 50_000_000
_PREFETCH = 2
"""Batches decoded ahead of the one in use."""
_WORKERS = min(16, os.cpu_count() or 1)
Result = TypeVar("Result")


def decode(file: str, size: int) -> Tensor:
    """Read one image as uint8 [3, size, size], stretched to a square."""
    with _open_image(file) as image:
        image.draft("RGB", (size, size))  # decode a JPEG at a reduced scale where possible
        square = _to_eight_bits(image, file).convert("RGB")
        if square.size != (size, size):
            square = square.resize((size, size), reducing_gap=3.0)
        return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def _to_eight_bits(image: Any, file: str) -> Any:  # noqa: ANN401
    """Scale 16 bits to 8, because `convert` clips them; refuse values without a known range."""
    # Pillow reads a PGM file of more than 8 bits as mode I, scaled to 16 bits.
    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PPM"):
        from PIL import Image

        values = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if image.mode in {"I", "F"}:
        raise DataError(
            f"{file} has 32-bit pixels of mode {image.mode}, whose range is not known; save it "
            "with 8 or 16 bits"
        )
    return image


def dimensions(file: str) -> tuple[int, int]:
    """Return width and height of an image from the header of its file."""
    with _open_image(file) as image:
        width, height = image.size
    return width, height


@contextmanager
def _open_image(file: str) -> Iterator[Any]:
    """Open an image, check its size before decoding, and name the file in errors."""
    from PIL import Image, UnidentifiedImageError

    formats = sorted(set(FORMATS.values()))
    try:
        with open_plain(file) as plain, Image.open(plain, formats=formats) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise DataError(
                    f"{file} has {width}×{height} pixels, more than the limit of "
                    f"{MOST_PIXELS:,}; make it smaller"
                )
            yield image
    except GemkitError:
        raise
    except UnidentifiedImageError as problem:
        raise DataError(
            f"{file} is not an image that can be decoded (unknown format); replace or remove it"
        ) from problem
    except Exception as problem:  # decoders raise anything on a damaged file
        if isinstance(problem, OSError) and problem.strerror:
            raise DataError(f"cannot read {file}: {problem.strerror}") from problem
        raise DataError(
            f"{file} is not an image that can be decoded ({problem}); replace or remove it"
        ) from problem


def map_batches(
    function: Callable[[str], Result], batches: Iterable[Sequence[str]]
) -> Iterator[list[Result]]:
    """Apply a function to every file in a thread pool; yield the results batch by batch."""
    pool = ThreadPoolExecutor(_WORKERS)
    pending: deque[list[Future[Result]]] = deque()
    remaining = iter(batches)
    try:
        while True:
            for batch in islice(remaining, 1 + _PREFETCH - len(pending)):
                pending.append([pool.submit(function, file) for file in batch])
            if not pending:
                return
            yield [future.result() for future in pending.popleft()]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def decode_batches(batches: Iterable[Sequence[str]], size: int) -> Iterator[Tensor]:
    """Decode each batch of files into uint8 [N, 3, size, size]."""
    for images in map_batches(partial(decode, size=size), batches):
        yield torch.stack(images) if images else torch.empty(0, 3, size, size, dtype=torch.uint8)
