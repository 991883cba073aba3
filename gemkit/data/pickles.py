"""Read CIFAR's pickled dictionaries of arrays without unpickling.

A pickle is a program that may call anything. Here its opcodes are interpreted one by one: those
that build plain values are applied, calls of a few NumPy names are recorded, and everything else
is an error. Nothing named in the file is ever imported or called.
"""

import math
import pickletools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemkit.core.errors import DataError

_OPCODES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}
_GLOBALS = {
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
"""Opcodes with an argument of fixed size, and its `struct` format."""
_COUNTED = {
    **{"SHORT_BINSTRING": "<B", "BINSTRING": "<i", "BINUNICODE": "<I"},
    **{"SHORT_BINBYTES": "<B", "BINBYTES": "<I"},
}
"""Opcodes with an argument of counted bytes, and the `struct` format of the count."""
_LITERALS = {*_COUNTED, "BININT", "BININT1", "BININT2", "BINFLOAT"}
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LONGEST_KEY = 100
_MAX_DIMENSIONS, _LARGEST_DIMENSION = 4, 2**20
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Exceptions that malformed content raises below."""


@dataclass
class _Global:
    """A function or class that the file names."""

    meaning: str


@dataclass
class _Call:
    """A call and the state to set on its result: recorded, never executed."""

    meaning: str
    arguments: Any
    state: Any = None


def read_pickled_dict(content: bytes) -> dict[str, Any]:
    """Return the dictionary in a pickle; get its arrays with `uint8_array`."""
    reader = _Interpreter()
    try:
        for opcode, argument in _opcodes(content):
            reader.apply(opcode, argument)
        found = reader.stack.pop()
    except (*_MALFORMED, struct.error) as problem:
        raise DataError(f"is damaged, or not a pickle of arrays ({problem})") from problem
    if not isinstance(found, dict):
        raise DataError("holds no dictionary")
    return found


def uint8_array(value: object) -> npt.NDArray[np.uint8]:
    """Return a recorded uint8 array, after checking its size against its content."""
    try:
        if not isinstance(value, _Call):
            raise TypeError("no array")
        _, shape_state, dtype_call, column_major, raw = value.state
        shape = _shape(shape_state)
        content = _bytes(raw)
        dtype = _text(dtype_call.arguments[0])
    except _MALFORMED as problem:
        raise DataError("holds something else where an array should be") from problem
    if dtype not in {"u1", "|u1", "uint8"} or column_major:
        raise DataError(f"holds an array of type {dtype!a}, not of row-major bytes")
    if math.prod(shape) != len(content):
        raise DataError(f"holds an array whose size does not match its shape {shape}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _shape(value: object) -> tuple[int, ...]:
    """Check that a value is a short tuple of integers before they are multiplied or printed."""
    if not isinstance(value, tuple) or len(value) > _MAX_DIMENSIONS:
        raise TypeError("no shape")
    if not all(type(size) is int and 0 <= size < _LARGEST_DIMENSION for size in value):
        raise TypeError("no shape")
    return value


def _opcodes(content: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the opcodes of a pickle with their arguments, up to STOP."""
    offset, name = 0, ""
    while name != "STOP":
        name = _OPCODES.get(content[offset : offset + 1], "missing")
        offset += 1
        argument: Any = None
        if name in _FIXED:
            [argument] = struct.unpack_from(_FIXED[name], content, offset)
            offset += struct.calcsize(_FIXED[name])
        elif name in _COUNTED:
            [count] = struct.unpack_from(_COUNTED[name], content, offset)
            offset += struct.calcsize(_COUNTED[name])
            argument = content[offset : offset + max(0, count)]
            if len(argument) != count:
                raise ValueError("it is cut off")
            argument = argument.decode() if name == "BINUNICODE" else argument
            offset += count
        elif name == "GLOBAL":
            module, attribute, _ = content[offset : offset + 200].split(b"\n", 2)
            offset += len(module) + len(attribute) + 2
            argument = f"{module.decode()} {attribute.decode()}"
        yield name, argument


class _Interpreter:
    """The stack, marks and memo that opcodes work on."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def apply(self, opcode: str, argument: Any) -> None:  # noqa: ANN401
        """Apply one opcode; those that plain data does not need are an error."""
        stack = self.stack
        if opcode in _LITERALS:
            stack.append(argument)
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        elif opcode in {"EMPTY_DICT", "EMPTY_LIST"}:
            stack.append({} if opcode == "EMPTY_DICT" else [])
        elif opcode == "MARK":
            self.marks.append(len(stack))
        elif opcode in {"BINPUT", "LONG_BINPUT"}:
            self.memo[argument] = stack[-1]
        elif opcode in {"BINGET", "LONG_BINGET"}:
            stack.append(self.memo[argument])
        elif opcode in {"TUPLE1", "TUPLE2", "TUPLE3"}:
            stack.append(tuple(self._pop(int(opcode[-1]))))
        elif opcode == "GLOBAL":
            stack.append(self._global(argument))
        elif opcode not in {"PROTO", "STOP"}:
            self._combine(opcode)

    def _combine(self, opcode: str) -> None:
        """Apply an opcode that combines values on the stack."""
        stack = self.stack
        if opcode == "TUPLE":
            stack.append(tuple(self._pop_mark()))
        elif opcode in {"APPEND", "APPENDS"}:
            more = self._pop(1) if opcode == "APPEND" else self._pop_mark()
            self._top(list).extend(more)
        elif opcode in {"SETITEM", "SETITEMS"}:
            more = self._pop(2) if opcode == "SETITEM" else self._pop_mark()
            keys = [_text(key) for key in more[::2]]
            self._top(dict).update(zip(keys, more[1::2], strict=True))
        elif opcode == "REDUCE":
            name, arguments = self._pop(2)
            stack.append(_Call(name.meaning, arguments))
        elif opcode == "BUILD":
            [state] = self._pop(1)
            self._top(_Call).state = state
        else:
            raise ValueError(f"it has the opcode {opcode}, which plain data does not need")

    def _pop(self, count: int) -> list[Any]:
        """Pop values off the stack."""
        if len(self.stack) < count:
            raise ValueError("its stack runs empty")
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def _pop_mark(self) -> list[Any]:
        """Pop everything above the last mark off the stack."""
        mark = self.marks.pop()
        taken = self.stack[mark:]
        del self.stack[mark:]
        return taken

    def _top(self, kind: type) -> Any:  # noqa: ANN401
        """Return the value on top of the stack, which must be of this kind."""
        if not isinstance(self.stack[-1], kind):
            raise ValueError("it changes a value of the wrong type")
        return self.stack[-1]

    def _global(self, text: str) -> _Global:
        if text not in _GLOBALS:
            raise ValueError(f"it asks for {text!a}, which gemkit does not run")
        return _Global(_GLOBALS[text])


def _bytes(value: object) -> bytes:
    """Return raw bytes as Python 2 (text) or Python 3 (an encode call) pickles them."""
    if isinstance(value, _Call) and value.meaning == "encode":
        value = value.arguments[0]
    if isinstance(value, str):
        return value.encode("latin-1")
    if not isinstance(value, bytes):
        raise TypeError("no bytes")
    return value


def _text(value: object) -> str:
    """Return a short string as Python 2 or 3 pickles it."""
    if isinstance(value, _Call) and value.meaning == "encode":
        value = value.arguments[0]
    if not isinstance(value, str | bytes) or len(value) > _LONGEST_KEY:
        raise ValueError("it has a key that is not a short string")
    return value if isinstance(value, str) else value.decode("latin-1")
