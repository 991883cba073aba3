"""Finding the plugin that somebody wants to have checked."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from gemkit.errors import PluginError, UnknownNameError, did_you_mean
from gemkit.plugins import GROUP, load_plugins
from gemkit.testing.things import things_of


class Found(NamedTuple):
    """What a plugin brings, and why it, or a part of it, cannot be used at all."""

    things: list[object]
    refused: list[str]


def find_plugin(text: str) -> Found:
    """Load a plugin by file, by distribution, or by the name of its entry point.

    A file is loaded next to gemkit's own parts, a distribution next to all that is installed.
    """
    return _from_file(Path(text)) if text.endswith(".py") else _from_distribution(text)


def _from_file(path: Path) -> Found:
    if not path.is_file():
        raise UnknownNameError(f"there is no file {path}")
    try:
        registry = load_plugins(files=[path], only=())
    except PluginError as refusal:
        return Found([], [str(refusal)])
    return Found(list(things_of(registry, path.stem)), [])


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
    registry = load_plugins(only=sorted(owners))
    marks = [f"plugin '{name}' (" for name in names]
    contested = [
        message for message in registry.contested.values() if any(mark in message for mark in marks)
    ]
    refused = [refusal.reason for refusal in registry.refused if refusal.plugin in names]
    return Found(
        [thing for name in names for thing in things_of(registry, name)], [*refused, *contested]
    )


def _normal(name: str) -> str:
    """Spell a distribution's name as installers compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
