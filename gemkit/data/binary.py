"""Read untrusted binary files: bounded size, and errors that name the file."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemkit.core.atomic_io import open_plain
from gemkit.core.errors import DataError

_CHUNK = 2**16
LARGEST_FILE = 2**30
"""In bytes. The largest file of these data sets, SVHN's training images, has 182 million."""


@contextmanager
def file_errors(file: Path) -> Iterator[None]:
    """Add the file's name to any error raised while it is read."""
    try:
        yield
    except DataError as problem:
        raise DataError(
            f"{file} {problem}; get it again from its source, for example by moving it away and "
            "using --download"
        ) from problem
    except OSError as problem:
        raise DataError(f"cannot read {file}: {problem.strerror or problem}") from problem


def read_bytes(file: Path, most: int = LARGEST_FILE) -> bytes:
    """Read a file of at most `most` bytes; decompress it if its name ends in .gz."""
    try:
        with open_plain(file) as plain:
            stream = gzip.GzipFile(fileobj=plain) if file.suffix == ".gz" else plain
            # In chunks, because a read allocates its full size before any data arrives.
            chunks = iter(lambda: stream.read(_CHUNK), b"")
            content = b"".join(islice(chunks, most // _CHUNK + 1))
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(f"is damaged ({problem})") from problem
    if len(content) > most:
        raise DataError(f"is larger than the limit of {most:,} bytes")
    return content


def read_idx(file: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read a uint8 array in MNIST's idx format: a type, the sizes, then the values."""
    content = read_bytes(file)
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"is not an idx file of uint8 values in {dimensions} dimensions")
    shape = np.frombuffer(content[4:start], dtype=">u4").tolist()
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        sizes = "×".join(map(str, shape))
        raise DataError(f"has {len(content):,} bytes; {sizes} values need {expected:,}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
