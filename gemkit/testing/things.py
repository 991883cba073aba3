"""List the things with a contract in a part class, a part or a plugin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

from gemkit.core.errors import PluginError
from gemkit.parts.options import part_from
from gemkit.parts.part import Part
from gemkit.plugins.registry import Entry, Registry
from gemkit.plugins.validate import Fault, validate
from gemkit.testing.clause import clause
from gemkit.testing.clauses.presets import NamedPreset
from gemkit.testing.clauses.pruners import Pruner
from gemkit.testing.fields import own_parts
from gemkit.testing.patches import patch_fault, replaced_by


def things_among(given: Sequence[object]) -> Iterator[object]:
    """Yield the things in all that is given; a part replaces its class if that needs fields.

    So `[plugin, Part(field=3)]` is the whole plugin, with this part in place of its class.
    """
    known = {type(each) for each in given}
    for each in given:
        for thing in things_in(each):
            if not (isinstance(thing, Unbuilt) and thing.cls in known):
                yield thing


def things_in(given: object) -> Iterator[object]:
    """Yield the things in a part class, a part, or a plugin module."""
    if isinstance(given, type) and issubclass(given, Part):
        made = built(given)
        if isinstance(made, Unbuilt):
            raise TypeError(f"{made}: {made.problem}")
        yield made
    elif isinstance(given, Part | Pruner | NamedPreset | Unbuilt):
        yield given
    elif isinstance(given, ModuleType):
        yield from things_of(registry_with(given), given.__name__)
    else:
        raise TypeError(f"contract takes a part class, a part or a plugin module, not {given!r}")


class Things(list[object]):
    """What a plugin registers, and the registry in which its parts find each other."""

    def __init__(self, things: Iterable[object] = (), registry: Registry | None = None) -> None:
        super().__init__(things)
        self.registry = registry


class Unbuilt(NamedTuple):
    """A part that cannot be built, because required fields have no valid examples."""

    cls: type[Part]
    required: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return self.cls.__name__

    @property
    def problem(self) -> str:
        """Why it cannot be built, and the way out."""
        fields = ", ".join(f"{name}=..." for name in self.required)
        return f"{self.reason}, or build one yourself, as in contract({self}({fields}))"


@clause(Unbuilt)
def it_can_be_tried(part: Unbuilt, case: None) -> None:
    """Required fields have examples, so that the part can be built and tried."""
    raise AssertionError(part.problem)


def built(cls: type[Part]) -> Part | Unbuilt:
    """Build a part with default fields, and the first example of each required field."""
    required = {name: info for name, info in cls.model_fields.items() if info.is_required()}
    unknown = tuple(name for name, info in required.items() if not info.examples)
    if unknown:
        reason = f"there is no example value for {', '.join(unknown)}; write Field(examples=[...])"
        return Unbuilt(cls, unknown, reason)
    first = {name: info.examples[0] for name, info in required.items() if info.examples}
    part, problems = part_from(cls, first, cls.name)
    if part is None:
        reason = f"its class refuses its own examples ({'; '.join(problems)}); correct them"
        return Unbuilt(cls, tuple(first), reason)
    return part


def things_of(registry: Registry, plugin: str) -> Iterator[object]:
    """Yield what a loaded plugin registered: a part of every class, its pruners and presets."""
    for entries in registry.parts.values():
        for entry in entries.values():
            if entry.plugin == plugin:
                yield built(entry.thing)
    for name, recipe in registry.pruners.items():
        if recipe.plugin == plugin:
            yield Pruner(name, registry)
    for name, preset in registry.presets.items():
        if preset.plugin == plugin:
            yield NamedPreset(name, registry)


def registry_with(plugin: ModuleType) -> Registry:
    """Validate a plugin module, and return what it registers beside the built-in parts."""
    name = plugin.__name__
    try:
        contribution = validate(plugin, name)
    except Fault as fault:
        raise PluginError(f"plugin '{name}': {fault}") from fault
    if replaced := replaced_by(name.partition(".")[0]):
        raise PluginError(f"plugin '{name}': {patch_fault(replaced)}")
    own = own_parts()
    parts: dict[str, dict[str, Any]] = {kind: dict(known) for kind, known in own.parts.items()}
    pruners, presets = dict(own.pruners), dict(own.presets)
    entries = {**parts, "pruners": pruners, "presets": presets}
    for (kind, key), thing in contribution.items():
        entries[kind][key] = Entry(thing, name, name)
    return replace(own, parts=parts, pruners=pruners, presets=presets)
