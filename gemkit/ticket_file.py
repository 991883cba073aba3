"""The ticket file: one safetensors file that says what it is and shows that it is whole.

Tensors: `mask/NAME`, a mask packed eight entries to a byte, and `state/NAME`. Metadata: `gemkit`,
one JSON document with the format version, the order of the names, what is known about the ticket
and a SHA-256 over that document and every tensor. The hash finds damage; it is no signature, so
every size has a bound (see `gemkit.limits`). Nothing is ever unpickled.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save as to_safetensors
from torch import Tensor

from gemkit.errors import StorageError, TicketError, some
from gemkit.files import open_plain, put
from gemkit.limits import MOST_ITEMS
from gemkit.tensor_file import TooLargeError, check_header, check_json, check_names, opened
from gemkit.tensors import Tensors
from gemkit.wording import escaped

FORMAT = 1
REPLACE_IT = "copy it again from where it came, or search again"
_FOREIGN = "give a file that Ticket.save wrote"

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
"""What a ticket can hold, with the names safetensors gives them."""


class Content(NamedTuple):
    """What goes into a file and comes out of it; `info` is plain JSON data.

    The tensors are on the CPU, contiguous, and share no memory: safetensors asks for that.
    """

    mask: Tensors
    state: Tensors
    info: dict[str, JsonValue]


class _Document(BaseModel):
    """The JSON beside the tensors; it keeps the order of names, which safetensors does not."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    format: int
    mask: list[str]
    state: list[str]
    info: dict[str, JsonValue]
    sha256: str = ""

    def names(self) -> list[str]:
        """Name every tensor the file must hold, and no other."""
        return [f"mask/{name}" for name in self.mask] + [f"state/{name}" for name in self.state]


# --- masks as bits -------------------------------------------------------------------------------


def pack(mask: Tensor) -> Tensor:
    """Pack a mask eight entries to a byte: C order, lowest bit first, the last byte zero-filled."""
    return torch.from_numpy(np.packbits(mask.reshape(-1).numpy(), bitorder="little"))


def unpack(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """Undo `pack`; refuse bytes that `pack` cannot have made for a mask of this shape."""
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


# --- writing -------------------------------------------------------------------------------------


def digest(content: Content) -> str:
    """Return the SHA-256 that identifies this content, the same one its file carries."""
    return _digest(_describe(content), _flatten(content))


def write(content: Content, path: Path, *, within: Path | None = None) -> None:
    """Write the file whole or not at all; what stood under that name before stays until then."""
    tensors, document = _flatten(content), _describe(content)
    document = document.model_copy(update={"sha256": _digest(document, tensors)})
    text = canonical(document.model_dump()).decode()
    data = to_safetensors(tensors, {"gemkit": text})
    try:
        check_names(tensors)
        check_header(data)
        check_json(text, MOST_ITEMS)
        put(data, path, within=within)
    except TooLargeError as error:
        raise TicketError(f"cannot save the ticket as {path}, which {error}") from error
    except FileNotFoundError as error:
        raise TicketError(
            f"cannot save the ticket as {path}: there is no folder {path.parent}; "
            "create it first, or save elsewhere"
        ) from error
    except OSError as error:
        raise TicketError(
            f"cannot save the ticket as {path}: {error.strerror or error}; that name is as it was "
            "before; make room or save elsewhere"
        ) from error


def _describe(content: Content) -> _Document:
    """Return the document for this content, without its hash."""
    mask, state = list(content.mask), list(content.state)
    return _Document(format=FORMAT, mask=mask, state=state, info=content.info)


def _flatten(content: Content) -> Tensors:
    """Return the tensors of the file under their names there."""
    masks = {f"mask/{name}": pack(mask) for name, mask in content.mask.items()}
    return masks | {f"state/{name}": tensor for name, tensor in content.state.items()}


def canonical(value: object) -> bytes:
    """Return the one JSON spelling of a value; NaN and infinity have none."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def _digest(document: _Document, tensors: Tensors) -> str:
    """Hash the document and every tensor."""
    return sha256(document.model_dump(exclude={"sha256"}), tensors)


def sha256(document: object, tensors: Tensors) -> str:
    """Hash JSON data, then name, dtype, shape and bytes of every tensor, sorted by name."""
    sha = hashlib.sha256(canonical(document))
    for name in sorted(tensors):
        tensor = tensors[name]
        sha.update(canonical([name, DTYPES[tensor.dtype], list(tensor.shape)]))
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


# --- reading untrusted files ---------------------------------------------------------------------


def read(path: Path, *, within: Path | None = None) -> Content:
    """Read a file and check all of it: names, types, hash, masks; the error says what failed."""
    try:
        return _read(path, within)
    except StorageError as error:
        raise TicketError(str(error)) from error
    except TicketError as flaw:  # the checks know what is wrong, only here is it known where
        raise TicketError(f"{path} {flaw}") from flaw.__cause__


def _read(path: Path, within: Path | None) -> Content:
    """Do what `read` says, with errors that do not name the file yet."""
    try:
        if path.is_dir():
            raise TicketError("is a folder; a run keeps its ticket in ticket.safetensors there")
        with open_plain(path, within=within) as plain:
            if os.fstat(plain.fileno()).st_size == 0:
                raise TicketError(f"is empty; {REPLACE_IT}")
            with opened(plain) as file:
                document = _parse((file.metadata() or {}).get("gemkit"))
                tensors = _tensors(file, document)
    except FileNotFoundError as error:
        raise TicketError(f"does not exist; {_FOREIGN}") from error
    except OSError as error:
        raise TicketError(f"cannot be read: {error.strerror or error}; check the path") from error
    except TooLargeError as error:
        raise TicketError(f"is not read: it {error}") from error
    except (SafetensorError, TypeError, RuntimeError) as error:  # torch refuses absurd shapes
        reason = str(error).partition("\n")[0]  # torch adds a C++ stack
        raise TicketError(
            f"is cut off, damaged or no safetensors file ({reason}); {REPLACE_IT}"
        ) from error
    if _digest(document, tensors) != document.sha256:
        raise TicketError(f"is damaged: its content does not match its SHA-256; {REPLACE_IT}")
    return _assemble(document, tensors)


def _parse(text: str | None) -> _Document:
    """Read the JSON document, its version first."""
    if text is None:
        raise TicketError(f"is a safetensors file but not a gemkit ticket; {_FOREIGN}")
    check_json(text, MOST_ITEMS)
    try:
        data: Any = json.loads(text)
        version = data.get("format") if isinstance(data, dict) else None
        if isinstance(version, int) and version != FORMAT:
            raise TicketError(
                f"has ticket format {version}, and this gemkit reads format {FORMAT}; "
                "install the gemkit that wrote it, or a newer one"
            )
        document = _Document.model_validate(data)
    except (ValueError, RecursionError) as error:
        reason = explain(error) if isinstance(error, ValidationError) else str(error)
        raise TicketError(
            f"is damaged: its description is broken ({reason}); {REPLACE_IT}"
        ) from error
    return document


def _tensors(file: Any, document: _Document) -> Tensors:  # noqa: ANN401 (safe_open has no types)
    """Read the tensors the document lists, once it is clear that they are what is there."""
    found, listed = sorted(file.keys()), sorted(document.names())
    if found != listed:
        lacks, extra = sorted({*listed} - {*found}), sorted({*found} - {*listed})
        raise TicketError(
            f"is damaged: it does not hold the tensors it lists "
            f"(missing: {some(lacks)}; not listed: {some(extra)}); {REPLACE_IT}"
        )
    alien = [name for name in found if file.get_slice(name).get_dtype() not in DTYPES.values()]
    if alien:
        raise TicketError(f"holds types that no ticket has, in {some(alien)}; {_FOREIGN}")
    return {name: file.get_tensor(name) for name in found}


def _assemble(document: _Document, tensors: Tensors) -> Content:
    """Give tensors their own names and order back, and unpack the masks."""
    state = {name: tensors[f"state/{name}"] for name in document.state}
    flags = {name: tensor for name, tensor in state.items() if tensor.dtype == torch.bool}
    odd = [name for name, flag in flags.items() if flag.view(torch.uint8).gt(1).any()]
    if odd:
        raise TicketError(
            f"is no sound ticket: neither true nor false in {some(odd)}; {REPLACE_IT}"
        )
    mask: Tensors = {}
    for name in document.mask:
        try:
            if name not in state:
                raise TicketError("there are no weights of that name")
            mask[name] = unpack(tensors[f"mask/{name}"], state[name].shape)
        except TicketError as flaw:
            raise TicketError(f"is no sound ticket: mask {name!r}: {flaw}; {REPLACE_IT}") from flaw
    return Content(mask, state, document.info)


# --- words ---------------------------------------------------------------------------------------


def explain(error: ValidationError) -> str:
    """Say in one line which fields are wrong, and why."""
    return "; ".join(
        f"{escaped('.'.join(str(step) for step in flaw['loc'][:6])) or 'document'}: {flaw['msg']}"
        for flaw in error.errors()[:5]
    )
