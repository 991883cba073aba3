"""Reading arrays of numbers from MATLAB's version 5 files: as much of the format as SVHN needs.

A file is a header and elements, each a type, a length and so many bytes; an element may be packed
with zlib. Lengths are checked before anything is allocated.
"""

import math
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemkit.data.binary import LARGEST_FILE
from gemkit.errors import DataError

_HEADER = 128
_MATRIX, _PACKED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"}


class _Element(NamedTuple):
    kind: int
    content: memoryview


def read_matrices(content: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a file by name, their dimensions in reverse order.

    MATLAB's first index runs fastest and NumPy's last, so the reverse needs no copy.
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[126:_HEADER])
    if order is None or content[:_HEADER].startswith(b"MATLAB 7.3"):
        raise DataError("is not a MATLAB file of version 5")
    found = {}
    for element in _elements(memoryview(content)[_HEADER:], order):
        if element.kind == _PACKED:
            [element] = list(_elements(_unpacked(element.content, order), order))[:1] or [element]
        if element.kind == _MATRIX:
            name, array = _matrix(element.content, order)
            found[name] = array
    return found


def _elements(content: memoryview, order: str) -> Iterator[_Element]:
    """Cut a run of bytes into elements."""
    place = 0
    while place + 8 <= len(content):
        kind, length = np.frombuffer(content[place : place + 8], dtype=f"{order}u4").tolist()
        start, end = place + 8, place + 8 + length
        after = end if kind == _PACKED else end + -length % 8
        if kind >> 16:  # up to four bytes are kept in the place of their length
            kind, length = kind & 0xFFFF, kind >> 16
            start, end, after = place + 4, place + 4 + length, place + 8
        if end > len(content) or after < end:
            raise DataError("is cut off in the middle of an array")
        yield _Element(kind, content[start:end])
        place = after


def _unpacked(packed: memoryview, order: str) -> memoryview:
    """Unpack one element, no further than the length it begins with."""
    stream = zlib.decompressobj()
    try:
        tag = stream.decompress(packed, 8)
        length = int.from_bytes(tag[4:8], "little" if order == "<" else "big")
        if len(tag) < 8 or length > LARGEST_FILE:
            raise DataError(f"holds an array of {length:,} bytes, which is not believed")
        return memoryview(tag + stream.decompress(stream.unconsumed_tail, max(1, length)))
    except zlib.error as problem:
        raise DataError(f"is damaged ({problem})") from problem


def _matrix(content: memoryview, order: str) -> tuple[str, npt.NDArray[Any]]:
    """Read one array: flags, dimensions, name, numbers."""
    elements = list(_elements(content, order))
    if len(elements) < 4 or elements[1].kind != 5 or elements[3].kind not in _NUMBERS:
        raise DataError("holds something that is not an array of numbers")
    _, dimensions, name, numbers = elements[:4]
    if len(dimensions.content) % 4:
        raise DataError("holds an array with damaged dimensions")
    shape = np.frombuffer(dimensions.content, dtype=f"{order}i4").tolist()
    dtype = np.dtype(order + _NUMBERS[numbers.kind])
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(numbers.content):
        raise DataError(f"holds an array whose size is not {shape}")
    array = np.frombuffer(numbers.content, dtype=dtype).reshape(shape[::-1])
    return bytes(name.content).decode("latin-1"), array
