"""Find a plugin by file, distribution or entry point."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from gemkit.core.errors import PluginError, UnknownNameError, did_you_mean
from gemkit.plugins.loader import GROUP, load_plugins
from gemkit.testing.patches import engine_watched, patch_fault, replaced_by
from gemkit.testing.things import Things, things_of


class Found(NamedTuple):
    """What a plugin registers, and why it, or a part of it, was refused."""

    things: Things
    refused: list[str]


def find_plugin(text: str) -> Found:
    """Load a plugin by file, by distribution, or by the name of its entry point.

    A file is loaded beside the built-in parts, a distribution beside all installed plugins.
    """
    return _from_file(Path(text)) if text.endswith(".py") else _from_distribution(text)


def _from_file(path: Path) -> Found:
    if not path.is_file():
        raise UnknownNameError(f"there is no file {path}")
    try:
        with engine_watched() as replaced:
            registry = load_plugins(files=[path], only=())
    except PluginError as refusal:
        return Found(Things(), [str(refusal)])
    if replaced:
        return Found(Things(), [f"plugin '{path.stem}' (file {path}): {patch_fault(replaced)}"])
    return Found(Things(things_of(registry, path.stem), registry), [])


def _from_distribution(text: str) -> Found:
    points = metadata.entry_points(group=GROUP)
    owners = {point.name: point.dist.name if point.dist else "" for point in points}
    names = [
        name for name, owner in owners.items() if _normal(text) in {_normal(name), _normal(owner)}
    ]
    if not names:
        known = {*owners, *filter(None, owners.values())}
        raise UnknownNameError(
            f"no installed plugin or distribution is called '{text}'"
            + (did_you_mean(text, known) or "; no plugins are installed")
        )
    with engine_watched() as replaced:
        load_plugins(only=names)
    for package in {point.module.partition(".")[0] for point in points if point.name in names}:
        replaced += replaced_by(package)
    if replaced:
        return Found(Things(), [f"plugin '{text}': {patch_fault(replaced)}"])
    registry = load_plugins(only=sorted(owners))
    marks = [f"plugin '{name}' (" for name in names]
    contested = [
        message for message in registry.contested.values() if any(mark in message for mark in marks)
    ]
    refused = [refusal.reason for refusal in registry.refused if refusal.plugin in names]
    things = [thing for name in names for thing in things_of(registry, name)]
    return Found(Things(things, registry), [*refused, *contested])


def _normal(name: str) -> str:
    """Normalize the name of a distribution, as pip does."""
    return re.sub(r"[-_.]+", "-", name).lower()
