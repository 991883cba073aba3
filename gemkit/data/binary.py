"""Opening data files without trust: never more bytes than asked for, and errors with a name."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemkit.errors import DataError
from gemkit.files import open_plain

_PIECE = 2**16
LARGEST_FILE = 2**30
"""Bytes; the largest file of these data sets, SVHN's training images, has 182 million."""


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Name the file in whatever goes wrong while it is read."""
    try:
        yield
    except DataError as problem:
        raise DataError(
            f"{file} {problem}; get it again from its source, for example with --download after "
            "moving this one away"
        ) from problem
    except OSError as problem:
        raise DataError(f"cannot read {file}: {problem.strerror or problem}") from problem


def read_bytes(file: Path, most: int = LARGEST_FILE) -> bytes:
    """Read a plain file, unpacking it where its name ends in .gz."""
    try:
        with open_plain(file) as plain:
            stream = gzip.GzipFile(fileobj=plain) if file.suffix == ".gz" else plain
            # In pieces, because room for all that is asked for is made before it is there.
            pieces = iter(lambda: stream.read(_PIECE), b"")
            content = b"".join(islice(pieces, most // _PIECE + 1))
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(f"is damaged ({problem})") from problem
    if len(content) > most:
        raise DataError(f"is larger than the {most:,} bytes that it may have")
    return content


def read_idx(file: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read an array of bytes in the format of MNIST: a type, the sizes, then the values."""
    content = read_bytes(file)
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"is not an idx file of bytes in {dimensions} dimensions")
    shape = np.frombuffer(content[4:start], dtype=">u4").tolist()
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        sizes = "×".join(map(str, shape))
        raise DataError(f"has {len(content):,} bytes; {sizes} values make it {expected:,}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
