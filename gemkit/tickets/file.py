"""The ticket file: one safetensors file with a description and a hash.

Tensors: `mask/NAME`, a mask packed eight entries to a byte, and `state/NAME`. Metadata: `gemkit`,
a JSON document with the format version, the names in order, the ticket's info and a SHA-256 over
that document and every tensor. See `gemkit.core.tensor_file`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from gemkit.core.atomic_io import write_atomic
from gemkit.core.errors import StorageError, TicketError, some
from gemkit.core.limits import MAX_JSON_ITEMS
from gemkit.core.tensor_file import (
    Document,
    InvalidFileError,
    TooLargeError,
    check_header,
    check_json,
    check_names,
    deserialize,
    serialize,
)
from gemkit.core.tensors import Tensors

FORMAT = 1
REPLACE_IT = "copy it again from its source, or search again in another folder"


class Content(NamedTuple):
    """The content of a file; `info` is plain JSON data.

    The tensors are on the CPU, contiguous, and share no memory, as safetensors requires.
    """

    mask: Tensors
    state: Tensors
    info: dict[str, JsonValue]


class _Document(Document):
    """The description of a ticket; it records the order of names, which safetensors does not."""

    mask: list[str]
    state: list[str]
    info: dict[str, JsonValue]

    def names(self) -> list[str]:
        """Return the names of all tensors in the file."""
        return [f"mask/{name}" for name in self.mask] + [f"state/{name}" for name in self.state]


def pack(mask: Tensor) -> Tensor:
    """Pack a mask eight entries to a byte: C order, lowest bit first, the last byte zero-filled."""
    return torch.from_numpy(np.packbits(mask.reshape(-1).numpy(), bitorder="little"))


def unpack(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """Undo `pack`; refuse bytes that `pack` cannot produce for a mask of this shape."""
    entries = int(np.prod(shape, dtype=np.int64))
    needed = (entries + 7) // 8
    if packed.dtype != torch.uint8 or packed.shape != (needed,):
        raise TicketError(
            f"a mask of shape {tuple(shape)} takes {needed} bytes (uint8), "
            f"not {tuple(packed.shape)} of {packed.dtype}"
        )
    if entries % 8 and int(packed[-1]) >> (entries % 8):
        raise TicketError("bits are set beyond the end of the mask")
    bits = np.unpackbits(packed.numpy(), count=entries, bitorder="little")
    return torch.from_numpy(bits).to(torch.bool).reshape(tuple(shape))


def digest(content: Content) -> str:
    """Return the SHA-256 of this content, the same as in its file."""
    document, tensors = _describe(content)
    return document.digest(tensors)


def write(content: Content, path: Path, *, within: Path | None = None) -> None:
    """Write the file atomically; an existing file stays until then."""
    document, tensors = _describe(content)
    data = serialize(document, tensors)
    try:
        check_names(tensors)
        check_header(data)
        check_json(document.to_json(), MAX_JSON_ITEMS)
        write_atomic(data, path, within=within)
    except TooLargeError as error:
        raise TicketError(f"cannot save the ticket as {path}, which {error}") from error
    except FileNotFoundError as error:
        raise TicketError(
            f"cannot save the ticket as {path}: there is no folder {path.parent}; "
            "create it first, or save elsewhere"
        ) from error
    except OSError as error:
        raise TicketError(
            f"cannot save the ticket as {path}: {error.strerror or error}; an existing file is "
            "unchanged; free some space or save elsewhere"
        ) from error


def _describe(content: Content) -> tuple[_Document, Tensors]:
    """Return the description, without its hash, and the tensors under their names in the file."""
    masks = {f"mask/{name}": pack(mask) for name, mask in content.mask.items()}
    states = {f"state/{name}": tensor for name, tensor in content.state.items()}
    mask, state = list(content.mask), list(content.state)
    document = _Document(format=FORMAT, mask=mask, state=state, info=content.info)
    return document, masks | states


def read(path: Path, *, within: Path | None = None) -> Content:
    """Read an untrusted file and check all of it: sizes, names, types, hash and masks."""
    try:
        document, tensors = deserialize(
            path, _Document, version=FORMAT, max_items=MAX_JSON_ITEMS, within=within
        )
        return _assemble(document, tensors)
    except StorageError as error:
        raise TicketError(str(error)) from error
    except TooLargeError as error:
        raise TicketError(f"{path} is not read: it {error}") from error
    except InvalidFileError as error:
        way_out = REPLACE_IT if error.damaged else "give a file that Ticket.save wrote"
        problem = str(error)
        if isinstance(error.__cause__, FileNotFoundError):
            problem = "does not exist"
        elif isinstance(error.__cause__, IsADirectoryError):
            problem, way_out = "is a folder", "the ticket of a run is ticket.safetensors there"
        raise TicketError(f"{path} {problem}; {way_out}") from error
    except TicketError as error:
        raise TicketError(f"{path} is no valid ticket: {error}; {REPLACE_IT}") from error


def _assemble(document: _Document, tensors: Tensors) -> Content:
    """Check the names, restore their order, and unpack the masks."""
    found, listed = sorted(tensors), sorted(document.names())
    if found != listed:
        missing, extra = sorted({*listed} - {*found}), sorted({*found} - {*listed})
        raise TicketError(
            f"its tensors differ from those it lists (missing: {some(missing)}; "
            f"not listed: {some(extra)})"
        )
    state = {name: tensors[f"state/{name}"] for name in document.state}
    flags = {name: tensor for name, tensor in state.items() if tensor.dtype == torch.bool}
    if odd := [name for name, flag in flags.items() if flag.view(torch.uint8).gt(1).any()]:
        raise TicketError(f"neither true nor false in {some(odd)}")
    mask: Tensors = {}
    for name in document.mask:
        try:
            if name not in state:
                raise TicketError("there are no weights of that name")
            mask[name] = unpack(tensors[f"mask/{name}"], state[name].shape)
        except TicketError as error:
            raise TicketError(f"mask {name!r}: {error}") from error
    return Content(mask, state, document.info)
