"""Find the versions of the plugins that a ticket depends on."""

import hashlib
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from gemkit.models.library import LibraryNet
from gemkit.parts.lookup import Lookup
from gemkit.parts.part import Part

UNKNOWN = "unknown"


def versions_of(parts: Iterable[Part], registry: Lookup) -> dict[str, str]:
    """Return the versions of all distributions other than gemkit that parts come from.

    They include the library that builds a network. A class that is not from an installed plugin is
    identified by the hash of its file, or as 'unknown' if it has no file, as in a notebook.
    """
    distributions = {
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
            if cls in distributions:
                name, _, number = distributions[cls].rpartition(" ")
            else:
                name, number = _file_of(cls)
            versions[name] = number
    return versions


def _file_of(cls: type[Part]) -> tuple[str, str]:
    """Return the name of the file that defines a class, and its hash."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or not Path(file).is_file():
        return cls.__module__, UNKNOWN
    return Path(file).name, f"sha256:{hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
