"""What a pruner is called in lists, studies and reports."""

from collections.abc import Mapping
from typing import Any

from gemkit.core.limits import MAX_NAME_LENGTH
from gemkit.parts.recipe import ROLES
from gemkit.plugins.registry import Registry
from gemkit.plugins.usual import usual_registry

_LEFT_OUT = ("structure", *(role for role, own in ROLES.items() if own.default is None))
"""Roles that a recipe does not write out where they have their default; others are damaged then."""


def pruner_title(recipe: object, registry: Registry | None = None) -> str | None:
    """Name a pruner by what it is: `snip`, or `snip, scores grasp` if a part was replaced.

    `recipe` is plain data, from a file that may be damaged; without a name in it, return None. A
    pruner that is not registered here is called by its name alone.
    """
    name = recipe.get("pruner") if isinstance(recipe, Mapping) else None
    if not isinstance(recipe, Mapping) or not isinstance(name, str):
        return None
    known = (registry or usual_registry()).pruners.get(name)
    if known is None:
        return name[:MAX_NAME_LENGTH]
    changed = [
        f"{role} {now}" if now else f"without {role}"
        for role in ROLES
        if (role in recipe or role in _LEFT_OUT)
        and (now := _part(recipe, role)) != _part(known.thing, role)
    ]
    return ", ".join([name, *changed])[:MAX_NAME_LENGTH]


def _part(recipe: Mapping[str, Any], role: str) -> str | None:
    """Return the name of the part in a role; a role that is not filled has its default."""
    spec = recipe.get(role, ROLES[role].default)
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    return None if name is None else str(name).partition(":")[0]
