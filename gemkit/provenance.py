"""Which plugins a ticket depends on: the versions of what brought its parts."""

import hashlib
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from gemkit.models.library import LibraryNet
from gemkit.parts import Part
from gemkit.registry import Registry

UNKNOWN = "unknown"


def versions_of(parts: Iterable[Part], registry: Registry) -> dict[str, str]:
    """Return the version of every distribution other than gemkit that parts come from.

    The library that builds a network counts as one. A class that no installed plugin brought has no
    version; the hash of the file that defines it stands for one. Where there is no file either, as
    in a notebook, its version is 'unknown'.
    """
    brought = {
        entry.thing: entry.distribution
        for entries in registry.parts.values()
        for entry in entries.values()
        if not entry.distribution.startswith("file ")
    }
    versions = {}
    for part in parts:
        cls = type(part)
        if isinstance(part, LibraryNet):
            versions[part.library] = version(part.library)
        if cls.__module__.partition(".")[0] != "gemkit":
            name, number = _split(brought[cls]) if cls in brought else _file_of(cls)
            versions[name] = number
    return versions


def _split(distribution: str) -> tuple[str, str]:
    """Take a distribution's version off its name."""
    name, _, number = distribution.rpartition(" ")
    return name, number


def _file_of(cls: type[Part]) -> tuple[str, str]:
    """Name the file that defines a class, and hash its contents."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or not Path(file).is_file():
        return cls.__module__, UNKNOWN
    return Path(file).name, f"sha256:{hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
