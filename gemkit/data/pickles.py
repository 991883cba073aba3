"""Reading the dictionaries of arrays that CIFAR comes as, without running what a pickle says.

A pickle is a program that may call anything. Here its instructions are read one by one; those
that build plain values are followed, a handful of NumPy's names are noted where a call is asked
for, and everything else is an error. Nothing named in the file is ever imported or called.
"""

import math
import pickletools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemkit.errors import DataError

_NAMES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}
_KNOWN = {
    "_codecs encode": "encode",
    "numpy dtype": "dtype",
    "numpy ndarray": "ndarray",
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
}
_FIXED = {
    **{"BININT": "<i", "BININT1": "<B", "BININT2": "<H", "BINFLOAT": ">d"},
    **{"BINPUT": "<B", "LONG_BINPUT": "<I", "BINGET": "<B", "LONG_BINGET": "<I", "PROTO": "<B"},
}
"""Instructions with an argument of fixed size, as `struct` has it."""
_COUNTED = {
    **{"SHORT_BINSTRING": "<B", "BINSTRING": "<i", "BINUNICODE": "<I"},
    **{"SHORT_BINBYTES": "<B", "BINBYTES": "<I"},
}
"""Instructions whose argument is so many bytes, and how their number is written."""
_LITERALS = {*_COUNTED, "BININT", "BININT1", "BININT2", "BINFLOAT"}
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LONGEST_KEY = 100
_MOST_SIDES, _LONGEST_SIDE = 4, 2**20
_DAMAGES = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What wrong content makes the lines below raise."""


@dataclass
class _Name:
    """A function or class the file names, by its meaning here."""

    meaning: str


@dataclass
class _Call:
    """A call the file asks for, and the state it wants set: noted, never carried out."""

    meaning: str
    arguments: Any
    state: Any = None


def read_pickled_dict(content: bytes) -> dict[str, Any]:
    """Return the dictionary a pickle describes; its arrays can be had with `uint8_array`."""
    reader = _Reader()
    try:
        for instruction, argument in _instructions(content):
            reader.follow(instruction, argument)
        found = reader.stack.pop()
    except (*_DAMAGES, struct.error) as problem:
        raise DataError(f"is damaged, or not a pickle of arrays ({problem})") from problem
    if not isinstance(found, dict):
        raise DataError("holds no dictionary")
    return found


def uint8_array(value: object) -> npt.NDArray[np.uint8]:
    """Return the array of bytes that was noted while reading; its size is checked, not believed."""
    try:
        if not isinstance(value, _Call):
            raise TypeError("no array")
        _, sides, kind, by_columns, raw = value.state
        shape = _shape(sides)
        content = _bytes(raw)
        dtype = _text(kind.arguments[0])
    except _DAMAGES as problem:
        raise DataError("holds something else where an array should be") from problem
    if dtype not in {"u1", "|u1", "uint8"} or by_columns:
        raise DataError(f"holds an array of type {dtype!a}, not of bytes row by row")
    if math.prod(shape) != len(content):
        raise DataError(f"holds an array whose size is not {shape}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _shape(sides: object) -> tuple[int, ...]:
    """Check that it is a short tuple of numbers, before they are multiplied or printed."""
    if not isinstance(sides, tuple) or len(sides) > _MOST_SIDES:
        raise TypeError("no shape")
    if not all(type(side) is int and 0 <= side < _LONGEST_SIDE for side in sides):
        raise TypeError("no shape")
    return sides


def _instructions(content: bytes) -> Iterator[tuple[str, Any]]:
    """Cut a pickle into instructions and their arguments, up to the one that ends it."""
    place, name = 0, ""
    while name != "STOP":
        name = _NAMES.get(content[place : place + 1], "missing")
        place += 1
        argument: Any = None
        if name in _FIXED:
            [argument] = struct.unpack_from(_FIXED[name], content, place)
            place += struct.calcsize(_FIXED[name])
        elif name in _COUNTED:
            [count] = struct.unpack_from(_COUNTED[name], content, place)
            place += struct.calcsize(_COUNTED[name])
            argument = content[place : place + max(0, count)]
            if len(argument) != count:
                raise ValueError("it is cut off")
            argument = argument.decode() if name == "BINUNICODE" else argument
            place += count
        elif name == "GLOBAL":
            module, attribute, _ = content[place : place + 200].split(b"\n", 2)
            place += len(module) + len(attribute) + 2
            argument = f"{module.decode()} {attribute.decode()}"
        yield name, argument


class _Reader:
    """A stack, the marks on it, and the values to come back to: what a pickle works on."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def follow(self, instruction: str, argument: Any) -> None:  # noqa: ANN401
        """Follow one instruction, if it is one that data needs."""
        stack = self.stack
        if instruction in _LITERALS:
            stack.append(argument)
        elif instruction in _CONSTANTS:
            stack.append(_CONSTANTS[instruction])
        elif instruction in {"EMPTY_DICT", "EMPTY_LIST"}:
            stack.append({} if instruction == "EMPTY_DICT" else [])
        elif instruction == "MARK":
            self.marks.append(len(stack))
        elif instruction in {"BINPUT", "LONG_BINPUT"}:
            self.memo[argument] = stack[-1]
        elif instruction in {"BINGET", "LONG_BINGET"}:
            stack.append(self.memo[argument])
        elif instruction in {"TUPLE1", "TUPLE2", "TUPLE3"}:
            stack.append(tuple(self._last(int(instruction[-1]))))
        elif instruction == "GLOBAL":
            stack.append(self._name(argument))
        elif instruction not in {"PROTO", "STOP"}:
            self._combine(instruction)

    def _combine(self, instruction: str) -> None:
        """Follow an instruction that puts values already read together."""
        stack = self.stack
        if instruction == "TUPLE":
            stack.append(tuple(self._marked()))
        elif instruction in {"APPEND", "APPENDS"}:
            more = self._last(1) if instruction == "APPEND" else self._marked()
            self._target(list).extend(more)
        elif instruction in {"SETITEM", "SETITEMS"}:
            more = self._last(2) if instruction == "SETITEM" else self._marked()
            keys = [_text(key) for key in more[::2]]
            self._target(dict).update(zip(keys, more[1::2], strict=True))
        elif instruction == "REDUCE":
            name, arguments = self._last(2)
            stack.append(_Call(name.meaning, arguments))
        elif instruction == "BUILD":
            [state] = self._last(1)
            self._target(_Call).state = state
        else:
            raise ValueError(f"it has the instruction {instruction}, which data does not need")

    def _last(self, count: int) -> list[Any]:
        """Take values off the stack."""
        if len(self.stack) < count:
            raise ValueError("it takes more than it has")
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def _marked(self) -> list[Any]:
        """Take everything above the last mark off the stack."""
        mark = self.marks.pop()
        taken = self.stack[mark:]
        del self.stack[mark:]
        return taken

    def _target(self, kind: type) -> Any:  # noqa: ANN401
        """Return the value on top of the stack, to be added to."""
        if not isinstance(self.stack[-1], kind):
            raise ValueError("it adds to something that cannot be added to")
        return self.stack[-1]

    def _name(self, text: str) -> _Name:
        if text not in _KNOWN:
            raise ValueError(f"it asks for {text!a}, which gemkit does not run")
        return _Name(_KNOWN[text])


def _bytes(value: object) -> bytes:
    """Return raw bytes, however they were written: Python 2 had them as text, 3 encodes text."""
    if isinstance(value, _Call) and value.meaning == "encode":
        value = value.arguments[0]
    if isinstance(value, str):
        return value.encode("latin-1")
    if not isinstance(value, bytes):
        raise TypeError("no bytes")
    return value


def _text(value: object) -> str:
    """Return a short text, however it was written."""
    if isinstance(value, _Call) and value.meaning == "encode":
        value = value.arguments[0]
    if not isinstance(value, str | bytes) or len(value) > _LONGEST_KEY:
        raise ValueError("it has a key that is no short text")
    return value if isinstance(value, str) else value.decode("latin-1")
