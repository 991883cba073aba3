"""The checkpoint file: the state of a run in the middle, as one safetensors file with a hash.

Tensors are numbered. Metadata: `gemkit`, one JSON document with the format version, the run and the
phase it belongs to, the tree of names and values with the numbers of the tensors in it, and a
SHA-256 over all of this and every tensor. A tensor comes back as it lay in memory, because the
order of a sum, and so its last bit, may depend on that. Nothing is ever unpickled.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save as to_safetensors
from torch import Tensor

from gemkit.errors import CheckpointError, StorageError
from gemkit.files import names, open_plain, put, remove
from gemkit.limits import MOST_ITEMS
from gemkit.stateful import State
from gemkit.tensor_file import TooLargeError, check_json, opened
from gemkit.tensors import Tensors
from gemkit.ticket_file import DTYPES, canonical, explain, sha256

FORMAT = 1


class Checkpoint(NamedTuple):
    """The state of one phase of a run; `run` is the fingerprint of what is run."""

    run: str
    phase: str
    state: State


class _Document(BaseModel):
    """The JSON beside the tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    format: int
    run: str
    phase: str
    tree: JsonValue
    sha256: str = ""

    def digest(self, tensors: Tensors) -> str:
        """Hash everything but the hash."""
        return sha256(self.model_dump(exclude={"sha256"}), tensors)


class _Leaf(BaseModel):
    """Where a tensor stands in the tree: its number, and its dimensions as they lay in memory."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tensor: int = Field(ge=0)
    order: list[int]


# --- writing -------------------------------------------------------------------------------------


def write(checkpoint: Checkpoint, path: Path) -> None:
    """Write the file whole or not at all."""
    tensors: Tensors = {}
    tree = _plain(checkpoint.state, tensors)
    document = _Document(format=FORMAT, run=checkpoint.run, phase=checkpoint.phase, tree=tree)
    document = document.model_copy(update={"sha256": document.digest(tensors)})
    text = canonical(document.model_dump()).decode()
    put(to_safetensors(_apart(tensors), {"gemkit": text}), path, within=_root(path))


def _root(path: Path) -> Path:
    """Return what may be a link on the way to a checkpoint: neither its file nor its folder."""
    return path.parent.parent


def _plain(value: object, tensors: Tensors) -> JsonValue:
    """Turn a state into JSON, and put its tensors into `tensors`."""
    if isinstance(value, Tensor):
        order = sorted(range(value.ndim), key=value.stride, reverse=True)
        flat = value.detach().permute(order).contiguous().cpu()
        leaf = _Leaf(tensor=len(tensors), order=order)
        tensors[str(leaf.tensor)] = flat
        return leaf.model_dump()
    if isinstance(value, dict):
        return {"of": {name: _plain(one, tensors) for name, one in value.items()}}
    if isinstance(value, list | tuple):
        return [_plain(one, tensors) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"something of type {type(value).__name__} cannot be part of a checkpoint")


def _apart(tensors: Tensors) -> Tensors:
    """Copy tensors that share memory with one before them: safetensors takes none that do."""
    seen: set[int] = set()
    apart: Tensors = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return apart


# --- reading untrusted files ---------------------------------------------------------------------


def read(path: Path) -> Checkpoint:
    """Read a file and check all of it; the error says what is wrong with which file."""
    try:
        return _read(path)
    except CheckpointError as flaw:
        raise CheckpointError(f"checkpoint {path} {flaw}") from flaw.__cause__


def _read(path: Path) -> Checkpoint:
    """Do what `read` says, with errors that do not name the file yet."""
    try:
        with open_plain(path, within=_root(path)) as plain:
            if os.fstat(plain.fileno()).st_size == 0:
                raise CheckpointError("is empty")
            with opened(plain) as file:
                document = _parse((file.metadata() or {}).get("gemkit"))
                tensors = _tensors(file)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror or error}") from error
    except TooLargeError as error:  # not damaged: nothing is removed or passed over for it
        raise StorageError(f"checkpoint {path} is not read: it {error}") from error
    except (SafetensorError, TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]  # torch adds a C++ stack
        raise CheckpointError(f"is cut off or damaged ({reason})") from error
    if document.digest(tensors) != document.sha256:
        raise CheckpointError("is damaged: its content does not match its SHA-256")
    state = _lively(document.tree, tensors)
    if not isinstance(state, dict):
        raise CheckpointError("holds no state")
    return Checkpoint(document.run, document.phase, state)


def _parse(text: str | None) -> _Document:
    """Read the JSON document, its version first."""
    if text is None:
        raise CheckpointError("is a safetensors file but no checkpoint of gemkit")
    check_json(text, 8 * MOST_ITEMS)  # a network's tensors are there several times
    try:
        data: Any = json.loads(text)
        version = data.get("format") if isinstance(data, dict) else None
        if isinstance(version, int) and version != FORMAT:
            raise CheckpointError(f"has format {version}, and this gemkit reads format {FORMAT}")
        return _Document.model_validate(data)
    except (ValueError, RecursionError) as error:
        reason = explain(error) if isinstance(error, ValidationError) else str(error)
        raise CheckpointError(f"is damaged: its description is broken ({reason})") from error


def _tensors(file: Any) -> Tensors:  # noqa: ANN401 (safe_open has no types)
    """Read all tensors, once it is clear that their types are ours; safetensors checks sizes."""
    names = list(file.keys())
    if any(file.get_slice(name).get_dtype() not in DTYPES.values() for name in names):
        raise CheckpointError("holds types that no checkpoint has")
    return {name: file.get_tensor(name) for name in names}


def _lively(tree: JsonValue, tensors: Tensors) -> Any:  # noqa: ANN401 (anything a state can hold)
    """Undo `_plain`."""
    if isinstance(tree, list):
        return [_lively(one, tensors) for one in tree]
    if not isinstance(tree, dict):
        return tree
    inner = tree.get("of")
    if isinstance(inner, dict) and len(tree) == 1:
        return {name: _lively(one, tensors) for name, one in inner.items()}
    try:
        leaf = _Leaf.model_validate(tree)
        flat = tensors[str(leaf.tensor)]
    except (ValidationError, KeyError) as error:
        raise CheckpointError("is damaged: its tree names what is not there") from error
    if sorted(leaf.order) != list(range(flat.ndim)):
        raise CheckpointError("is damaged: a tensor has other dimensions than its tree says")
    if flat.dtype == torch.bool:  # a byte that is neither true nor false would be both
        flat = flat.view(torch.uint8).ne(0)
    return flat.permute([leaf.order.index(place) for place in range(flat.ndim)])


# --- a folder of them ----------------------------------------------------------------------------


class Shelf:
    """The checkpoints of a run: the last two are kept, and the newest sound one counts.

    Neither the folder nor anything in it may be a link.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> list[Path]:
        """List the checkpoints, the newest first."""
        there = [self.folder / name for name in names(self.folder, within=self.folder.parent)]
        found = [path for path in there if path.suffix == ".safetensors" and path.stem.isdecimal()]
        return sorted(found, key=lambda path: int(path.stem), reverse=True)

    def add(self, checkpoint: Checkpoint) -> None:
        """Write one more, and then remove those before the last two."""
        files = self.files()
        number = 1 + int(files[0].stem) if files else 1
        self.folder.mkdir(parents=True, exist_ok=True)
        write(checkpoint, self.folder / f"{number:08d}.safetensors")
        for old in files[1:]:
            self.remove(old)

    def remove(self, file: Path) -> None:
        """Remove a checkpoint, if it is there."""
        remove(file, within=self.folder.parent)

    def newest(self) -> tuple[Checkpoint | None, dict[Path, str]]:
        """Return the newest sound checkpoint, if any, and what is wrong with those after it."""
        flaws: dict[Path, str] = {}
        for file in self.files():
            try:
                return read(file), flaws
            except CheckpointError as flaw:
                flaws[file] = str(flaw)
        return None, flaws
