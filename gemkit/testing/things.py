"""From what an author has at hand (a class, a part, a plugin) to the things with a contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import NamedTuple

from gemkit.errors import PluginError
from gemkit.examine import Fault, examine
from gemkit.options import part_from
from gemkit.parts import Part
from gemkit.registry import Entry, Registry
from gemkit.testing.clause import clause
from gemkit.testing.clauses.presets import NamedPreset
from gemkit.testing.clauses.pruners import Pruner
from gemkit.testing.clauses.searching import own_parts


def things_among(given: Sequence[object]) -> Iterator[object]:
    """Yield the things in all that is given; a part stands for its class, where that needs fields.

    So `[plugin, Part(field=3)]` is the whole plugin, with one part built as its author says.
    """
    known = {type(each) for each in given}
    for each in given:
        for thing in things_in(each):
            if not (isinstance(thing, Unbuilt) and thing.cls in known):
                yield thing


def things_in(given: object) -> Iterator[object]:
    """Yield the things in a part class, a part, or a plugin (a module with hooks)."""
    if isinstance(given, type) and issubclass(given, Part):
        made = built(given)
        if isinstance(made, Unbuilt):
            raise TypeError(f"{made}: {made.problem}")
        yield made
    elif isinstance(given, Part | Pruner | NamedPreset | Unbuilt):
        yield given
    elif isinstance(given, ModuleType):
        yield from _brought(given)
    else:
        raise TypeError(f"a contract is for a part class, a part or a plugin module, not {given!r}")


class Unbuilt(NamedTuple):
    """A part that cannot be tried, because fields have no value, or none that its class takes."""

    cls: type[Part]
    required: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return self.cls.__name__

    @property
    def problem(self) -> str:
        """Why it cannot be tried, and the ways out."""
        fields = ", ".join(f"{name}=..." for name in self.required)
        return f"{self.reason}, or build one yourself, as in contract({self}({fields}))"


@clause(Unbuilt)
def it_can_be_tried(part: Unbuilt, case: None) -> None:
    """Fields without a default give examples, so that the part can be built and tried."""
    raise AssertionError(part.problem)


def built(cls: type[Part]) -> Part | Unbuilt:
    """Build a part with its default fields, and the first example of those that must be given."""
    required = {name: info for name, info in cls.model_fields.items() if info.is_required()}
    silent = tuple(name for name, info in required.items() if not info.examples)
    if silent:
        unknown = f"nobody knows a value for {', '.join(silent)}; write Field(examples=[...])"
        return Unbuilt(cls, silent, unknown)
    first = {name: info.examples[0] for name, info in required.items() if info.examples}
    part, problems = part_from(cls, first, cls.name)
    if part is None:
        refused = f"its class refuses the values it gives itself ({'; '.join(problems)}); mend them"
        return Unbuilt(cls, tuple(first), refused)
    return part


def things_of(registry: Registry, plugin: str) -> Iterator[object]:
    """Yield what one loaded plugin brought: a part of every class, its pruners and presets."""
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


def _brought(plugin: ModuleType) -> Iterator[object]:
    """Examine a plugin as loading it would, next to gemkit's own parts."""
    name = plugin.__name__
    try:
        brings = examine(plugin, name)
    except Fault as fault:
        raise PluginError(f"plugin '{name}': {fault}") from fault
    own = own_parts()
    parts = {kind: dict(entries) for kind, entries in own.parts.items()}
    for (kind, part_name), part in brings.parts.items():
        parts[kind][part_name] = Entry(part, name, name)
    recipes = {key: Entry(data, name, name) for key, data in brings.pruners.items()}
    presets = {key: Entry(preset, name, name) for key, preset in brings.presets.items()}
    registry = replace(
        own,
        parts=parts,
        pruners={**own.pruners, **recipes},
        presets={**own.presets, **presets},
    )
    yield from things_of(registry, name)
