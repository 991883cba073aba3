"""Safetensors files from anyone, opened only if everything in their header is within bounds."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from safetensors import safe_open

from gemkit.errors import some
from gemkit.files import name_of
from gemkit.limits import (
    LARGEST_HEADER,
    LONGEST_NAME,
    MOST_DIMENSIONS,
    MOST_TENSORS,
    VARIABLE,
    largest_file,
)

_WAY_OUT = "no network needs that, so take another file"


class TooLargeError(ValueError):
    """A file that asks for more than gemkit gives on its word; the message says the way out."""


@contextmanager
def opened(plain: BinaryIO) -> Iterator[Any]:
    """Read an open file as tensors; none is read before all sizes are checked."""
    size, beginning = os.fstat(plain.fileno()).st_size, plain.read(8)
    if size > (most := largest_file()):
        raise TooLargeError(
            f"has {size:,} bytes, more than the {most:,} that are read by default; if you trust "
            f"it and have the memory, set {VARIABLE}={-(-size // 10**9)}"
        )
    if int.from_bytes(beginning, "little") <= size:  # else it is cut off, which safe_open says
        check_header(beginning)
    # "pread", not the default memory map: a map would change under us with the file.
    with safe_open(name_of(plain), framework="pt", backend="pread") as file:
        names = file.keys()
        check_names(names)
        tall = [name for name in names if len(file.get_slice(name).get_shape()) > MOST_DIMENSIONS]
        if tall:
            raise TooLargeError(
                f"has more than {MOST_DIMENSIONS} dimensions in {some(tall)}; {_WAY_OUT}"
            )
        yield file


def check_header(beginning: bytes) -> None:
    """Refuse a header that is longer than that of any network; its length begins the file."""
    length = int.from_bytes(beginning[:8], "little")
    if length > LARGEST_HEADER:
        raise TooLargeError(
            f"has a header of {length:,} bytes, and at most {LARGEST_HEADER:,} are read; {_WAY_OUT}"
        )


def check_json(text: str, most: int) -> None:
    """Refuse JSON with more items than these, counted without parsing it."""
    items = sum(map(text.count, ",[{"))
    if items > most:
        raise TooLargeError(f"has {items:,} items in its JSON, and at most {most:,} are read")


def check_names(names: Iterable[str]) -> None:
    """Refuse more tensors, or longer names, than any network has."""
    names = list(names)
    if len(names) > MOST_TENSORS:
        raise TooLargeError(
            f"has {len(names):,} tensors, and at most {MOST_TENSORS:,} are read; {_WAY_OUT}"
        )
    longest = max(map(len, names), default=0)
    if longest > LONGEST_NAME:
        raise TooLargeError(
            f"has a tensor name of {longest:,} characters, and at most {LONGEST_NAME} are read; "
            f"{_WAY_OUT}"
        )
