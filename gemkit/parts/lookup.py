"""Look parts up by name, without importing the registry."""

from collections.abc import Mapping
from typing import Any, Protocol

from gemkit.parts.part import Part
from gemkit.parts.recipe import Recipe


class Lookup(Protocol):
    """The methods of the registry that lower rooms use."""

    @property
    def parts(self) -> Mapping[str, Mapping[str, Any]]:
        """The registered classes: kind, then name, then an entry with its class and plugin."""
        ...

    def build(self, kind: str, spec: str | Mapping[str, Any]) -> Part:
        """Build a part from its kind and its name, or a table with its name and fields."""
        ...

    def recipe(self, pruner: str | Mapping[str, Any]) -> Recipe:
        """Build the recipe of a pruner, or the one that this data describes."""
        ...
