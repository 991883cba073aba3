"""Which plugins a run depends on."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from gemkit.parts import Part
from gemkit.plugins import BUILT_IN
from gemkit.recipe import Recipe
from gemkit.registry import KIND_OF_ROLE, Registry


def versions_of_plugins(
    registry: Registry,
    recipe: Recipe,
    model: Part,
    dataset: Part,
    files: Sequence[Path],
) -> dict[str, str]:
    """Return the version of every distribution other than gemkit whose parts are used.

    A plugin file has no version; its contents' hash stands for one.
    """
    used: Iterable[tuple[str, Part]] = [
        *((KIND_OF_ROLE[role], part) for role, part in recipe.parts().items()),
        ("models", model),
        ("datasets", dataset),
    ]
    hashes = {f"file {file}": (file.name, _sha256(file)) for file in files}
    versions = {}
    for kind, part in used:
        entry = registry.part(kind, part.name)
        if entry.plugin not in BUILT_IN:
            split = entry.distribution.rpartition(" ")
            name, number = hashes.get(entry.distribution, (split[0], split[2]))
            versions[name] = number
    return versions


def _sha256(file: Path) -> str:
    return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
