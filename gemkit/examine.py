"""Examining one plugin, alone: are its hooks known, and is what they return fit to register?"""

import re
from dataclasses import dataclass, field
from typing import Any

import pluggy

from gemkit import hookspecs
from gemkit.errors import OptionError, did_you_mean
from gemkit.examine_part import part_problems
from gemkit.parts import Part
from gemkit.preset import PRESET_NAME, Preset, preset_from
from gemkit.recipe import PART_NAME, Recipe
from gemkit.registry import KINDS, Kind, RecipeData

HOOKS = {name for name in vars(hookspecs) if name.startswith("gemkit_")}


class Fault(Exception):  # noqa: N818 - not an error of its own: its words end up in a PluginError
    """What is wrong with a plugin, and how its author mends it."""


@dataclass(frozen=True)
class Contribution:
    """What one plugin brings: part classes by kind and name; recipe data and presets by name."""

    parts: dict[tuple[str, str], type[Part]] = field(default_factory=dict)
    pruners: dict[str, RecipeData] = field(default_factory=dict)
    presets: dict[str, Preset] = field(default_factory=dict)

    def names(self) -> set[tuple[str, str]]:
        """Return (kind, name) of everything, with kinds `pruners` and `presets` for these."""
        pruners = (("pruners", name) for name in self.pruners)
        return {*self.parts, *pruners, *(("presets", name) for name in self.presets)}


def examine(plugin: object, plugin_name: str) -> Contribution:
    """Call every hook of a plugin and check what comes back; anything wrong is a Fault."""
    hooks = _hooks(plugin, plugin_name)
    returned = {name: _call(name, function) for name, function in hooks.items()}
    parts = {
        (kind_name, name): part
        for kind_name, kind in KINDS.items()
        if kind.hook in returned
        for name, part in _named_parts(kind, returned[kind.hook]).items()
    }
    return Contribution(
        parts,
        _named_recipes(returned.get("gemkit_pruners", {})),
        _named_presets(returned.get("gemkit_presets", {})),
    )


def _hooks(plugin: object, plugin_name: str) -> dict[str, Any]:
    """Find the hook functions of a plugin, all of them known and rightly declared."""
    manager = pluggy.PluginManager("gemkit")
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, plugin_name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        for caller in manager.get_hookcallers(plugin) or []:
            if not caller.has_spec():
                hint = did_you_mean(caller.name, HOOKS)
                raise Fault(f"there is no hook '{caller.name}'{hint}") from error
        raise Fault(" ".join(str(error).split())) from error
    hooks = {
        caller.name: caller.get_hookimpls()[0].function
        for caller in manager.get_hookcallers(plugin) or []
        if caller.has_spec()  # one without is marked optional: meant for another gemkit
    }
    for name in sorted(HOOKS - hooks.keys()):
        if hasattr(plugin, name):
            raise Fault(f"{name} is not marked; put @hookimpl of gemkit.hookspecs before it")
    if not hooks:
        raise Fault(f"it has no hooks; define some of {', '.join(sorted(HOOKS))}")
    return hooks


def _call(name: str, function: Any) -> object:  # noqa: ANN401 - pluggy's own word for a hook
    """Call one hook.

    Not through the plugin manager, because that drops None, the sign of a forgotten `return`.
    """
    try:
        result: object = function()
    except (Exception, SystemExit) as error:
        raise Fault(f"{name} failed with {type(error).__name__}: {error}") from error
    return result


def _named_parts(kind: Kind, classes: object) -> dict[str, type[Part]]:
    """Check that a hook returned a list of complete, differently named classes of its kind."""
    if not isinstance(classes, list):
        raise Fault(
            f"{kind.hook} returned {_described(classes)}; return a list of {kind.base.__name__} "
            "classes"
        )
    named: dict[str, type[Part]] = {}
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, kind.base)):
            raise Fault(
                f"{kind.hook} lists {_described(cls)}; list subclasses of "
                f"gemkit.parts.{kind.base.__name__}"
            )
        if problems := part_problems(cls):
            raise Fault(f"{kind.hook} lists {cls.__name__}, which {', and '.join(problems)}")
        if cls.name in named:
            raise Fault(
                f"{kind.hook} lists {named[cls.name].__name__} and {cls.__name__}, both named "
                f"'{cls.name}'; rename one"
            )
        named[cls.name] = cls
    return named


def _named_recipes(recipes: object) -> dict[str, RecipeData]:
    """Check that the pruners are recipe data by name, with no key a recipe does not have."""
    if not isinstance(recipes, dict):
        raise Fault(
            f"gemkit_pruners returned {_described(recipes)}; return a dict of pruner name to "
            "recipe data"
        )
    for name, data in recipes.items():
        if not (isinstance(name, str) and re.fullmatch(PART_NAME, name)):
            raise Fault(
                f"gemkit_pruners names a pruner {name!r}; use small letters, digits and _, "
                "a letter first"
            )
        if not isinstance(data, dict):
            raise Fault(
                f"gemkit_pruners gives {_described(data)} for '{name}'; give recipe data, a dict"
            )
        for key in data:
            if key == "pruner" or key not in Recipe.model_fields:
                known = set(Recipe.model_fields) - {"pruner"}
                raise Fault(
                    f"gemkit_pruners gives '{name}' the key {key!r}, which recipes do not have"
                    f"{did_you_mean(str(key), known)}"
                )
        if not isinstance(data.get("help", ""), str):
            raise Fault(
                f"gemkit_pruners gives '{name}' {_described(data['help'])} as help; give a text"
            )
    return recipes


def _named_presets(presets: object) -> dict[str, Preset]:
    """Check that the presets are complete, with no key a preset does not have."""
    if not isinstance(presets, dict):
        raise Fault(
            f"gemkit_presets returned {_described(presets)}; return a dict of preset name to data"
        )
    for name in presets:
        if not (isinstance(name, str) and re.fullmatch(PRESET_NAME, name)):
            raise Fault(
                f"gemkit_presets names a preset {name!r}; write 'my_plugin/my-preset', in small "
                "letters, digits, _, - and ."
            )
    try:
        return {name: preset_from(name, data) for name, data in presets.items()}
    except OptionError as error:
        raise Fault(f"gemkit_presets gives a faulty one, {error}") from error


def _described(value: object) -> str:
    """Describe a value by its type, or a class by its name."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"something of type {type(value).__name__}"
