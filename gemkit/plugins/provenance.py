"""Find the versions of the plugins that a ticket depends on."""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

from gemkit.models.library import LibraryNet
from gemkit.parts.lookup import Lookup
from gemkit.parts.part import Part

UNKNOWN = "unknown"


def versions_of(parts: Iterable[Part], registry: Lookup) -> dict[str, str]:
    """Return the versions of all distributions other than gemkit that parts come from.

    They include the library that builds a network, and what the parts within parts come from. A
    class that is not from an installed plugin is identified by the hash of its file, or as
    'unknown' if it has no file, as in a notebook.
    """
    distributions = {
        entry.thing: entry.distribution
        for entries in registry.parts.values()
        for entry in entries.values()
        if not entry.distribution.startswith("file ")
    }
    versions: dict[str, str] = {}
    for part in _with_inner(parts):
        cls = type(part)
        if isinstance(part, LibraryNet):
            versions[part.library] = version(part.library)
        if cls.__module__.partition(".")[0] != "gemkit":
            if cls in distributions:
                name, _, number = distributions[cls].rpartition(" ")
            else:
                name, number = _file_of(cls)
            add_version(versions, name, number)
    return versions


def add_version(versions: dict[str, str], name: str, number: str) -> None:
    """Add a version; of two different files with one name, the second becomes `name (2)`."""
    own, count = name, 1
    while versions.setdefault(own, number) != number:
        count += 1
        own = f"{name} ({count})"


def _with_inner(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield parts, each followed by the parts within it."""
    for part in parts:
        yield part
        yield from _with_inner(part.inner().values())


def _file_of(cls: type[Part]) -> tuple[str, str]:
    """Return the name of the file that defines a class, and its hash."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or not Path(file).is_file():
        return cls.__module__, UNKNOWN
    return Path(file).name, f"sha256:{hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
