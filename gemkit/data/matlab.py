"""Read numeric arrays from MATLAB 5 files: as much of the format as SVHN needs.

A file is a header and elements: a type, a length and that many bytes, perhaps compressed by zlib.
Lengths are checked before memory is allocated; only the requested arrays are decompressed.
"""

import math
import struct
import zlib
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemkit.core.errors import DataError
from gemkit.data.binary import LARGEST_FILE

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_PREFIX = 512
"""Bytes that hold an array's flags, dimensions and name, which has at most 63 letters."""
_MAX_DIMENSIONS = 4
_DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"}


class _Element(NamedTuple):
    kind: int
    content: memoryview


def read_matrices(content: bytes, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of these names, with their dimensions reversed.

    MATLAB is column-major and NumPy row-major, so reversed dimensions need no copy.
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[126:_HEADER])
    if order is None or content[:_HEADER].startswith(b"MATLAB 7.3"):
        raise DataError("is not a MATLAB file of version 5")
    found = {}
    budget = LARGEST_FILE
    for element in _elements(memoryview(content)[_HEADER:], order):
        if element.kind == _COMPRESSED:
            element = _decompress(element.content, order, names, budget)
            budget -= len(element.content)
        name = _name(element, order)
        if name in names:
            found[name] = _matrix(element.content, order)
    return found


def _elements(content: memoryview, order: str) -> Iterator[_Element]:
    """Split bytes into elements."""
    offset = 0
    while offset + 8 <= len(content):
        kind, length = np.frombuffer(content[offset : offset + 8], dtype=f"{order}u4").tolist()
        start, end = offset + 8, offset + 8 + length
        after = end if kind == _COMPRESSED else end + -length % 8
        if kind >> 16:  # small element: up to four bytes of data in the length field
            kind, length = kind & 0xFFFF, kind >> 16
            start, end, after = offset + 4, offset + 4 + length, offset + 8
        if end > len(content) or after < end:
            raise DataError("is cut off in the middle of an array")
        yield _Element(kind, content[start:end])
        offset = after


def _decompress(data: memoryview, order: str, names: Collection[str], budget: int) -> _Element:
    """Decompress an element up to its length, or only its prefix if its name is not in `names`."""
    stream = zlib.decompressobj()
    try:
        head = stream.decompress(data, _PREFIX)
        if len(head) < 8:
            raise DataError("is cut off in the middle of an array")
        kind, length = struct.unpack_from(f"{order}II", head)
        if length > budget:
            raise DataError(f"holds an array of {length:,} bytes, more than the limit")
        prefix = _Element(kind, memoryview(head)[8 : 8 + length])
        if _name(prefix, order) not in names or length <= len(prefix.content):
            return prefix
        rest = stream.decompress(stream.unconsumed_tail, 8 + length - len(head))
    except zlib.error as problem:
        raise DataError(f"is damaged ({problem})") from problem
    if len(head) + len(rest) < 8 + length:
        raise DataError("is cut off in the middle of an array")
    return _Element(kind, memoryview(head + rest)[8:])


def _name(element: _Element, order: str) -> str:
    """Return the name of an array, which follows flags and dimensions; "" if it has none."""
    elements = islice(_elements(element.content, order), 3) if element.kind == _MATRIX else ()
    return "".join(bytes(content).decode("latin-1") for _, content in list(elements)[2:])


def _matrix(content: memoryview, order: str) -> npt.NDArray[Any]:
    """Read one array: flags, dimensions, name, numbers."""
    elements = list(islice(_elements(content, order), 4))
    if len(elements) < 4 or elements[1].kind != 5 or elements[3].kind not in _DTYPES:
        raise DataError("holds something that is not an array of numbers")
    dimensions, numbers = elements[1], elements[3]
    if len(dimensions.content) not in range(0, 4 * _MAX_DIMENSIONS + 1, 4):
        raise DataError("holds an array with damaged dimensions")
    shape = np.frombuffer(dimensions.content, dtype=f"{order}i4").tolist()
    dtype = np.dtype(order + _DTYPES[numbers.kind])
    if 0 in shape:
        raise DataError("holds an empty array")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(numbers.content):
        raise DataError(f"holds an array whose size does not match its shape {shape}")
    return np.frombuffer(numbers.content, dtype=dtype).reshape(shape[::-1])
