"""The checkpoint file: the state of a run, as one safetensors file with a description and a hash.

Tensors are numbered. Metadata: `gemkit`, a JSON document with the format version, the run and phase
it belongs to, the state as a tree that refers to tensors by number, and a SHA-256 (see
`gemkit.core.tensor_file`). A tensor keeps its memory layout, because the order of a sum, and so
its last bit, may depend on it.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from torch import Tensor

from gemkit.core.atomic_io import list_folder, remove, write_atomic
from gemkit.core.errors import CheckpointError, StorageError
from gemkit.core.limits import MAX_JSON_ITEMS
from gemkit.core.state import StateDict
from gemkit.core.tensor_file import (
    Document,
    InvalidFileError,
    TooLargeError,
    deserialize,
    serialize,
)
from gemkit.core.tensors import Tensors

FORMAT = 1
_MAX_ITEMS = 8 * MAX_JSON_ITEMS  # a checkpoint holds a network's tensors several times


class Checkpoint(NamedTuple):
    """The state of one phase of a run; `run` is the fingerprint of its configuration."""

    run: str
    phase: str
    state: StateDict


class _Document(Document):
    """The description of a checkpoint."""

    run: str
    phase: str
    tree: JsonValue


class _Leaf(BaseModel):
    """A tensor in the tree: its number, and the order of its dimensions in memory."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tensor: int = Field(ge=0)
    order: list[int]


def write(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint atomically."""
    tensors: Tensors = {}
    tree = _to_json(checkpoint.state, tensors)
    document = _Document(format=FORMAT, run=checkpoint.run, phase=checkpoint.phase, tree=tree)
    write_atomic(serialize(document, _unshared(tensors)), path, within=_root(path))


def _root(path: Path) -> Path:
    """Return the folder below which no link is followed: the file and its folder must be none."""
    return path.parent.parent


def _to_json(value: object, tensors: Tensors) -> JsonValue:
    """Convert a state to JSON, and move its tensors into `tensors`."""
    if isinstance(value, Tensor):
        order = sorted(range(value.ndim), key=value.stride, reverse=True)
        flat = value.detach().permute(order).contiguous().cpu()
        leaf = _Leaf(tensor=len(tensors), order=order)
        tensors[str(leaf.tensor)] = flat
        return leaf.model_dump()
    if isinstance(value, dict):
        return {"of": {name: _to_json(one, tensors) for name, one in value.items()}}
    if isinstance(value, list | tuple):
        return [_to_json(one, tensors) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold a value of type {type(value).__name__}")


def _unshared(tensors: Tensors) -> Tensors:
    """Copy tensors that share memory with an earlier one, which safetensors refuses."""
    seen: set[int] = set()
    unshared: Tensors = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        unshared[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return unshared


def read(path: Path) -> Checkpoint:
    """Read an untrusted file and check all of it."""
    try:
        document, tensors = deserialize(
            path, _Document, version=FORMAT, max_items=_MAX_ITEMS, within=_root(path)
        )
        state = _from_json(document.tree, tensors)
        if not isinstance(state, dict):
            raise InvalidFileError("holds no state")
    except TooLargeError as error:  # not damaged, so it must not be removed or skipped
        raise StorageError(f"checkpoint {path} is not read: it {error}") from error
    except InvalidFileError as error:
        raise CheckpointError(f"checkpoint {path} {error}") from error
    return Checkpoint(document.run, document.phase, state)


def _from_json(tree: JsonValue, tensors: Tensors) -> Any:  # noqa: ANN401 (any value of a state)
    """Undo `_to_json`."""
    if isinstance(tree, list):
        return [_from_json(one, tensors) for one in tree]
    if not isinstance(tree, dict):
        return tree
    inner = tree.get("of")
    if isinstance(inner, dict) and len(tree) == 1:
        return {name: _from_json(one, tensors) for name, one in inner.items()}
    try:
        leaf = _Leaf.model_validate(tree)
        flat = tensors[str(leaf.tensor)]
    except (ValidationError, KeyError) as error:
        raise InvalidFileError("is damaged: its tree refers to a missing tensor") from error
    if sorted(leaf.order) != list(range(flat.ndim)):
        raise InvalidFileError("is damaged: a tensor has other dimensions than its tree says")
    if flat.dtype == torch.bool:  # a byte other than 0 and 1 would be both true and false
        flat = flat.view(torch.uint8).ne(0)
    return flat.permute([leaf.order.index(place) for place in range(flat.ndim)])


class CheckpointDir:
    """The folder of a run's checkpoints, which keeps the last two.

    Neither the folder nor anything in it may be a link.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> list[Path]:
        """List the checkpoints, the newest first."""
        names = list_folder(self.folder, within=self.folder.parent)
        paths = [self.folder / name for name in names]
        found = [path for path in paths if path.suffix == ".safetensors" and path.stem.isdecimal()]
        return sorted(found, key=lambda path: int(path.stem), reverse=True)

    def add(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove all but the last two."""
        files = self.files()
        number = 1 + int(files[0].stem) if files else 1
        self.folder.mkdir(exist_ok=True)  # without its parent: a removed run stays removed
        write(checkpoint, self.folder / f"{number:08d}.safetensors")
        for old in files[1:]:
            self.remove(old)

    def remove(self, file: Path) -> None:
        """Remove a checkpoint, if it exists."""
        remove(file, within=self.folder.parent)

    def newest(self) -> tuple[Checkpoint | None, dict[Path, str]]:
        """Return the newest valid checkpoint, if any, and what is wrong with newer ones."""
        flaws: dict[Path, str] = {}
        for file in self.files():
            try:
                return read(file), flaws
            except CheckpointError as flaw:
                flaws[file] = str(flaw)
        return None, flaws
