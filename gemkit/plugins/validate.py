"""Validate a plugin: its hooks, and what they return."""

import re
import traceback
from collections.abc import Mapping
from typing import Any

import pluggy

from gemkit.core.errors import OptionError, did_you_mean
from gemkit.parts.part import Part
from gemkit.parts.recipe import PART_NAME, Recipe
from gemkit.plugins import hookspecs
from gemkit.plugins.registry import KINDS, Kind, RecipeData
from gemkit.plugins.validate_part import API_VERSION, part_problems
from gemkit.presets.preset import PRESET_NAME, Preset, preset_from

HOOKS = {name for name in vars(hookspecs) if name.startswith("gemkit_")}


class Fault(Exception):  # noqa: N818 - its message becomes part of a PluginError
    """A fault of a plugin, and how its author can fix it."""


Contribution = dict[tuple[str, str], Any]
"""What a plugin registers, by (kind, name): part classes, recipe data and presets.

Kinds are those of `KINDS`, `pruners` and `presets`.
"""


def validate(plugin: object, plugin_name: str) -> Contribution:
    """Call every hook of a plugin and check what it returns; raise `Fault` for any problem."""
    hooks = _hooks(plugin, plugin_name)
    returned = {name: _call(name, function) for name, function in hooks.items()}
    named: dict[str, Mapping[str, Any]] = {
        name: _named_parts(kind, returned[kind.hook])
        for name, kind in KINDS.items()
        if kind.hook in returned
    }
    named["pruners"] = _named_recipes(returned.get("gemkit_pruners", {}))
    named["presets"] = _named_presets(returned.get("gemkit_presets", {}))
    return {(kind, name): thing for kind in named for name, thing in named[kind].items()}


def _hooks(plugin: object, plugin_name: str) -> dict[str, Any]:
    """Return the hook functions of a plugin; refuse unknown and unmarked ones."""
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
        if caller.has_spec()  # an optional hook of another gemkit version has none
    }
    for name in sorted(HOOKS - hooks.keys()):
        if hasattr(plugin, name):
            raise Fault(f"{name} is not marked; put @gemkit.hookimpl before it")
    version = getattr(plugin, "api_version", API_VERSION)
    if version != API_VERSION:
        raise Fault(
            f"it is written for version {version} of the plugin API, and this gemkit has "
            f"{API_VERSION}"
        )
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
        *_, last = traceback.extract_tb(error.__traceback__)
        where = f"at {last.filename}:{last.lineno}"
        raise Fault(f"{name} failed with {type(error).__name__}: {error}, {where}") from error
    return result


def _named_parts(kind: Kind, classes: object) -> dict[str, type[Part]]:
    """Check that a hook returned a list of valid classes of its kind, with different names."""
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
                f"gemkit.{kind.base.__name__}"
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
    """Check that pruners are recipe data by name, with known keys."""
    if not isinstance(recipes, dict):
        raise Fault(
            f"gemkit_pruners returned {_described(recipes)}; return a dict of pruner name to "
            "recipe data"
        )
    for name, data in recipes.items():
        if not (isinstance(name, str) and re.fullmatch(PART_NAME, name)):
            raise Fault(
                f"gemkit_pruners names a pruner {name!r}; use lower-case letters, digits and _, "
                "starting with a letter"
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
                f"gemkit_pruners gives '{name}' {_described(data['help'])} as help; give a string"
            )
    return recipes


def _named_presets(presets: object) -> dict[str, Preset]:
    """Check that presets are complete, with known keys."""
    if not isinstance(presets, dict):
        raise Fault(
            f"gemkit_presets returned {_described(presets)}; return a dict of preset name to data"
        )
    for name in presets:
        if not (isinstance(name, str) and re.fullmatch(PRESET_NAME, name)):
            raise Fault(
                f"gemkit_presets names a preset {name!r}; write 'my_plugin/my-preset', with "
                "lower-case letters, digits, _, - and ."
            )
    try:
        return {name: preset_from(name, data) for name, data in presets.items()}
    except OptionError as error:
        raise Fault(f"gemkit_presets gives an invalid preset, {error}") from error


def _described(value: object) -> str:
    """Describe a value by its type, and a class by its name."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"something of type {type(value).__name__}"
