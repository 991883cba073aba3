"""Find the versions of the plugins that a ticket depends on."""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path

from gemkit.core.atomic_io import open_plain
from gemkit.core.errors import StorageError
from gemkit.models.custom import Custom
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


def hashes_of(network: Custom | LibraryNet) -> Iterator[tuple[str, str]]:
    """Yield names and hashes of the files that a network is made of, besides those of libraries.

    They are the file of its weights, and of a user's own network the file of its module, which is
    not imported for that. Modules that it imports are not followed. A file that is missing is left
    to the error that building the network raises.
    """
    files = []
    if isinstance(network, Custom):
        address = network.function.partition(":")[0]
        module = _module_file(address)
        files += [] if module is None else [(address, Path(module))]
    if network.weights is not None:
        files.append((Path(network.weights).name, Path(network.weights)))
    for name, file in files:
        with suppress(OSError, StorageError):
            about = file.stat()
            state = (about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
            yield name, _hash(file.absolute(), state)


@lru_cache(maxsize=256)
def _hash(file: Path, state: tuple[int, ...]) -> str:
    """Hash a file, once in each state: weights may be large, and a study has many cells."""
    sha = hashlib.sha256()
    with open_plain(file) as plain:
        while block := plain.read(1 << 20):
            sha.update(block)
    return f"sha256:{sha.hexdigest()}"


def _module_file(address: str) -> str | None:
    """Return the file of a module as `Custom` would import it, without running any code."""
    here = str(Path.cwd())
    folders: list[str] | None = sys.path if here in sys.path else [here, *sys.path]
    name, spec = "", None
    for step in address.split("."):
        name = f"{name}.{step}" if name else step
        spec = None if folders is None else _found(name, folders)
        folders = None
        if spec is not None and spec.submodule_search_locations is not None:
            folders = list(spec.submodule_search_locations)
    return spec.origin if spec is not None and spec.has_location else None


def _found(name: str, folders: list[str]) -> ModuleSpec | None:
    """Find a module in folders, or through whatever else finds modules, as for editable ones."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, folders, None)
        if spec is not None:
            return spec
    return None


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
