"""Noticing a plugin that replaces what belongs to gemkit or to torch, and putting it back."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import is_
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

TORCH = ("torch", "torch.optim", "torch.nn", "torch.autograd")
_ABSENT = object()
_NOT_LIBRARY = ("gemkit.cli", "gemkit.__main__")

WAY_OUT = (
    "a plugin brings parts, and changes nothing of gemkit or torch: others who use them would get "
    "other results"
)


class Owner(NamedTuple):
    """A module or a class, by its full name, and what it held."""

    thing: ModuleType | type
    name: str
    held: dict[str, Any]
    containers: dict[str, Any]


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (torch.get_default_device, torch.set_default_device),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's deterministic mode": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "torch's precision of products": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
}
"""Settings of torch that change the results of others: how to read and to set them."""


@contextmanager
def engine_watched() -> Iterator[list[str]]:
    """Yield a list that names, after the block, what the block replaced; that is put back.

    Functions, classes, their methods and module-level values of gemkit count, functions, classes
    and methods of torch that are not torch's own any more, and torch's global settings.
    """
    _import_everything()
    settings = {name: read() for name, (read, _) in SETTINGS.items()}
    before = [
        Owner(thing, name, dict(vars(thing)), _containers(thing)) for thing, name in _owners()
    ]
    replaced: list[str] = []
    try:
        yield replaced
    finally:
        for owner in before:
            replaced += _put_back(owner)
        for name, (read, change) in SETTINGS.items():
            if read() != settings[name]:
                change(settings[name])
                replaced.append(name)


def replaced_by(package: str) -> list[str]:
    """Name what a package has put into gemkit, if it was imported before gemkit was watched."""
    if package == "gemkit":
        return []
    return sorted(
        f"{name}.{key}"
        for thing, name in _owners()
        if name.startswith("gemkit")
        for key, value in vars(thing).items()
        if not isinstance(value, ModuleType) and _origin(value).partition(".")[0] == package
    )


def patch_fault(replaced: Sequence[str]) -> str:
    """Say what was replaced, and why that is a fault."""
    return f"it replaces {', '.join(replaced[:5])}; {WAY_OUT}"


def _import_everything() -> None:
    """Import gemkit whole, so that nothing is imported and replaced in one go."""
    for found in pkgutil.walk_packages([str(Path(__file__).parents[1])], "gemkit."):
        if not found.name.startswith(_NOT_LIBRARY):
            with suppress(ImportError):  # something optional is not installed
                importlib.import_module(found.name)


def _owners() -> Iterator[tuple[ModuleType | type, str]]:
    """Yield the modules of gemkit and the core of torch, and the classes they define."""
    for name, module in sorted(sys.modules.items()):
        parts = name.split(".")
        torchs = parts[0] == "torch" and ".".join(parts[:2]) in TORCH
        if not isinstance(module, ModuleType) or not (torchs or parts[0] == "gemkit"):
            continue
        yield module, name
        for key, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == name:
                yield value, f"{name}.{key}"


def _containers(thing: ModuleType | type) -> dict[str, Any]:
    """Copy the lists, dictionaries and sets of a module of gemkit."""
    if not isinstance(thing, ModuleType) or not thing.__name__.startswith("gemkit"):
        return {}
    return {
        name: value.copy()
        for name, value in vars(thing).items()
        if type(value) in (dict, list, set) and not name.startswith("__")
    }


def _put_back(owner: Owner) -> Iterator[str]:
    """Undo what has changed, and name it."""
    for name in sorted({*owner.held, *vars(owner.thing)}):
        old, new = owner.held.get(name, _ABSENT), vars(owner.thing).get(name, _ABSENT)
        if old is new or not _counts(owner, name, old, new):
            continue
        if old is _ABSENT:
            delattr(owner.thing, name)
        else:
            setattr(owner.thing, name, old)
        yield f"{owner.name}.{name}"
    for name, copy in owner.containers.items():
        value = owner.held[name]
        if not _alike(value, copy):
            value.clear()
            value.extend(copy) if isinstance(value, list) else value.update(copy)
            yield f"what is in {owner.name}.{name}"


def _counts(owner: Owner, name: str, old: object, new: object) -> bool:
    """Whether another value is a replacement, and not what Python, pydantic or torch do."""
    if name.startswith("__pydantic") or isinstance(new, ModuleType):
        return False
    if name.startswith("__") and not callable(new if old is _ABSENT else old):
        return False
    if owner.name.startswith("gemkit"):
        return True
    return callable(old) and not _origin(new).startswith("torch")


def _origin(value: object) -> str:
    """Name the module that a function, method or class was written in."""
    value = getattr(value, "__func__", getattr(value, "fget", value))
    written = getattr(value, "__globals__", None)
    origin = getattr(value, "__module__", None) if written is None else written.get("__name__")
    return str(origin)


def _alike(one: Any, other: Any) -> bool:  # noqa: ANN401 - two containers of one type
    """Whether two containers hold the same objects."""
    if isinstance(one, dict):
        return _alike(list(one.items()), list(other.items()))
    if isinstance(one, set):
        return bool(one == other)
    return len(one) == len(other) and all(map(_same, one, other))


def _same(one: object, other: object) -> bool:
    """Whether two values, or two pairs of values, are the same objects."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(map(is_, one, other))
    return one is other
