"""Safetensors files with a JSON description and a SHA-256, read without trusting them.

The hash detects damage but is no signature, so every size is checked before it is used (see
`gemkit.core.limits`). Nothing is ever unpickled.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from gemkit.core.atomic_io import fd_path, open_plain
from gemkit.core.errors import some
from gemkit.core.limits import (
    MAX_DIMENSIONS,
    MAX_HEADER_BYTES,
    MAX_NAME_LENGTH,
    MAX_TENSORS,
    VARIABLE,
    max_file_bytes,
)
from gemkit.core.memory import shortage
from gemkit.core.tensors import Tensors
from gemkit.core.text import escaped

_WAY_OUT = "no network needs that, so use another file"

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The dtypes a file may hold, with their safetensors names."""


class TooLargeError(ValueError):
    """A file asks for more than the limits allow; the message says the way out."""


class InvalidFileError(Exception):
    """A file cannot be read; the message continues a sentence that starts with its name."""

    def __init__(self, message: str, *, damaged: bool = True) -> None:
        super().__init__(message)
        self.damaged = damaged


class Document(BaseModel):
    """The JSON description that a file holds beside its tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    format: int
    sha256: str = ""

    def digest(self, tensors: Tensors) -> str:
        """Hash the description, without the hash in it, and every tensor."""
        return sha256(self.model_dump(exclude={"sha256"}), tensors)

    def to_json(self) -> str:
        """Return canonical JSON."""
        return canonical(self.model_dump()).decode()


AnyDocument = TypeVar("AnyDocument", bound=Document)


def serialize(document: Document, tensors: Tensors) -> bytes:
    """Return a file with a description, its hash, and tensors on the CPU that share no memory."""
    document = document.model_copy(update={"sha256": document.digest(tensors)})
    return save(tensors, {"gemkit": document.to_json()})


def deserialize(
    path: Path, kind: type[AnyDocument], *, version: int, max_items: int, within: Path | None
) -> tuple[AnyDocument, Tensors]:
    """Read a file and check its sizes, types and hash.

    Raise `TooLargeError` for one that exceeds the limits, `InvalidFileError` for any other fault.
    """
    try:
        with open_plain(path, within=within) as plain:
            if os.fstat(plain.fileno()).st_size == 0:
                raise InvalidFileError("is empty")
            with open_tensors(plain) as file:
                document = _parse((file.metadata() or {}).get("gemkit"), kind, version, max_items)
                tensors = _load(file)
    except (OSError, SafetensorError, TypeError, RuntimeError) as error:
        if shortage(error):  # the file may be sound, and a damaged checkpoint is removed
            raise
        if isinstance(error, OSError):
            reason = f"cannot be read: {error.strerror or error}"
            raise InvalidFileError(reason, damaged=False) from error
        reason = str(error).partition("\n")[0]  # torch adds a C++ stack, and refuses absurd shapes
        raise InvalidFileError(f"is truncated, damaged or not safetensors ({reason})") from error
    if document.digest(tensors) != document.sha256:
        raise InvalidFileError("is damaged: its content does not match its SHA-256")
    return document, tensors


def _parse(text: str | None, kind: type[AnyDocument], version: int, max_items: int) -> AnyDocument:
    """Parse the description, its version first."""
    if text is None:
        raise InvalidFileError("is a safetensors file without a gemkit description", damaged=False)
    check_json(text, max_items)
    try:
        data: Any = json.loads(text)
        found = data.get("format") if isinstance(data, dict) else None
        if isinstance(found, int) and found != version:
            raise InvalidFileError(
                f"has format {found}, and this gemkit reads format {version}; install the gemkit "
                "that wrote it, or a newer one",
                damaged=False,
            )
        return kind.model_validate(data)
    except (ValueError, RecursionError) as error:
        reason = explain(error) if isinstance(error, ValidationError) else str(error)
        raise InvalidFileError(f"is damaged: its description is invalid ({reason})") from error


def _load(file: Any) -> Tensors:  # noqa: ANN401 (safe_open has no types)
    """Load all tensors after checking their dtypes; safetensors checks their sizes."""
    names = list(file.keys())
    foreign = [name for name in names if file.get_slice(name).get_dtype() not in DTYPES.values()]
    if foreign:
        raise InvalidFileError(f"holds unknown dtypes in {some(foreign)}", damaged=False)
    return {name: file.get_tensor(name) for name in names}


@contextmanager
def open_tensors(plain: BinaryIO) -> Iterator[Any]:
    """Open a file as safetensors; check all sizes before any tensor is read."""
    size, beginning = os.fstat(plain.fileno()).st_size, plain.read(8)
    if size > (most := max_file_bytes()):
        raise TooLargeError(
            f"has {size:,} bytes, more than the limit of {most:,}; if you trust it and have the "
            f"memory, set {VARIABLE}={-(-size // 10**9)}"
        )
    if int.from_bytes(beginning, "little") <= size:  # else safe_open reports that it is cut off
        check_header(beginning)
    # "pread", not the default memory map: a map changes when the file is changed.
    with safe_open(fd_path(plain), framework="pt", backend="pread") as file:
        names = file.keys()
        check_names(names)
        tall = [name for name in names if len(file.get_slice(name).get_shape()) > MAX_DIMENSIONS]
        if tall:
            raise TooLargeError(
                f"has more than {MAX_DIMENSIONS} dimensions in {some(tall)}; {_WAY_OUT}"
            )
        yield file


def check_header(beginning: bytes) -> None:
    """Refuse a header that is too long; its length is in the first 8 bytes."""
    length = int.from_bytes(beginning[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise TooLargeError(
            f"has a header of {length:,} bytes, and at most {MAX_HEADER_BYTES:,} are read; "
            f"{_WAY_OUT}"
        )


def check_json(text: str, most: int) -> None:
    """Refuse JSON with more than `most` items, counted without parsing it."""
    items = sum(map(text.count, ",[{"))
    if items > most:
        raise TooLargeError(f"has {items:,} items in its JSON, and at most {most:,} are read")


def check_names(names: Iterable[str]) -> None:
    """Refuse too many tensors, or too long names."""
    names = list(names)
    if len(names) > MAX_TENSORS:
        raise TooLargeError(
            f"has {len(names):,} tensors, and at most {MAX_TENSORS:,} are read; {_WAY_OUT}"
        )
    longest = max(map(len, names), default=0)
    if longest > MAX_NAME_LENGTH:
        raise TooLargeError(
            f"has a tensor name of {longest:,} characters, and at most {MAX_NAME_LENGTH} are read; "
            f"{_WAY_OUT}"
        )


def canonical(value: object) -> bytes:
    """Return canonical JSON; refuse NaN and infinity."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def sha256(document: object, tensors: Tensors) -> str:
    """Hash JSON data, then name, dtype, shape and bytes of every tensor, sorted by name."""
    sha = hashlib.sha256(canonical(document))
    for name in sorted(tensors):
        tensor = tensors[name]
        sha.update(canonical([name, DTYPES[tensor.dtype], list(tensor.shape)]))
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def explain(error: ValidationError) -> str:
    """Say in one line which fields are invalid, and why."""
    return "; ".join(
        f"{escaped('.'.join(str(step) for step in flaw['loc'][:6])) or 'document'}: {flaw['msg']}"
        for flaw in error.errors()[:5]
    )
