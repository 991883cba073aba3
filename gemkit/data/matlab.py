"""Reading arrays of numbers from MATLAB's version 5 files: as much of the format as SVHN needs.

A file is a header and elements, each a type, a length and so many bytes; an element may be packed
with zlib. Lengths are checked before anything is allocated, and only what is asked for is unpacked.
"""

import math
import struct
import zlib
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemkit.data.binary import LARGEST_FILE
from gemkit.errors import DataError

_HEADER = 128
_MATRIX, _PACKED = 14, 15
_BEGINNING = 512
"""Bytes with an array's flags, dimensions and name, which has at most 63 letters."""
_MOST_SIDES = 4
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"}


class _Element(NamedTuple):
    kind: int
    content: memoryview


def read_matrices(content: bytes, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of these names, their dimensions in reverse order.

    MATLAB's first index runs fastest and NumPy's last, so the reverse needs no copy.
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[126:_HEADER])
    if order is None or content[:_HEADER].startswith(b"MATLAB 7.3"):
        raise DataError("is not a MATLAB file of version 5")
    found = {}
    room = LARGEST_FILE
    for element in _elements(memoryview(content)[_HEADER:], order):
        if element.kind == _PACKED:
            element = _unpacked(element.content, order, names, room)
            room -= len(element.content)
        name = _name(element, order)
        if name in names:
            found[name] = _matrix(element.content, order)
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


def _unpacked(packed: memoryview, order: str, names: Collection[str], room: int) -> _Element:
    """Unpack one element, no further than its own length; of others, the beginning."""
    stream = zlib.decompressobj()
    try:
        begun = stream.decompress(packed, _BEGINNING)
        if len(begun) < 8:
            raise DataError("is cut off in the middle of an array")
        kind, length = struct.unpack_from(f"{order}II", begun)
        if length > room:
            raise DataError(f"holds an array of {length:,} bytes, which is not believed")
        beginning = _Element(kind, memoryview(begun)[8 : 8 + length])
        if _name(beginning, order) not in names or length <= len(beginning.content):
            return beginning
        rest = stream.decompress(stream.unconsumed_tail, 8 + length - len(begun))
    except zlib.error as problem:
        raise DataError(f"is damaged ({problem})") from problem
    if len(begun) + len(rest) < 8 + length:
        raise DataError("is cut off in the middle of an array")
    return _Element(kind, memoryview(begun + rest)[8:])


def _name(element: _Element, order: str) -> str:
    """Return the name of an array, which comes after flags and dimensions; "" if it has none."""
    elements = islice(_elements(element.content, order), 3) if element.kind == _MATRIX else ()
    return "".join(bytes(content).decode("latin-1") for _, content in list(elements)[2:])


def _matrix(content: memoryview, order: str) -> npt.NDArray[Any]:
    """Read one array: flags, dimensions, name, numbers."""
    elements = list(islice(_elements(content, order), 4))
    if len(elements) < 4 or elements[1].kind != 5 or elements[3].kind not in _NUMBERS:
        raise DataError("holds something that is not an array of numbers")
    dimensions, numbers = elements[1], elements[3]
    if len(dimensions.content) not in range(0, 4 * _MOST_SIDES + 1, 4):
        raise DataError("holds an array with damaged dimensions")
    shape = np.frombuffer(dimensions.content, dtype=f"{order}i4").tolist()
    dtype = np.dtype(order + _NUMBERS[numbers.kind])
    if 0 in shape:
        raise DataError("holds an array without numbers")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(numbers.content):
        raise DataError(f"holds an array whose size is not {shape}")
    return np.frombuffer(numbers.content, dtype=dtype).reshape(shape[::-1])
