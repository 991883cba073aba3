"""The catalogue of parts: what is registered, its fields, and the plugin it comes from."""

import inspect
import json
import math
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from gemkit.core.errors import UnknownNameError, did_you_mean
from gemkit.parts.part import Part
from gemkit.parts.recipe import Rewind, Scope
from gemkit.plugins.registry import KINDS, Entry, RecipeData, Registry
from gemkit.report.tables import text_table
from gemkit.training.plan import Plan

_BOUNDS: dict[type, tuple[str, str]] = {
    annotated_types.Gt: (">", "gt"),
    annotated_types.Ge: (">=", "ge"),
    annotated_types.Lt: ("<", "lt"),
    annotated_types.Le: ("<=", "le"),
    annotated_types.MinLen: ("length >=", "min_length"),
    annotated_types.MaxLen: ("length <=", "max_length"),
}


def first_sentence(part: type[BaseModel]) -> str:
    """Return the first paragraph of a part's documentation on one line."""
    return " ".join((inspect.getdoc(part) or "").split("\n\n")[0].split())


SETTINGS: dict[str, tuple[type[BaseModel], str]] = {
    "rewind": (Rewind, first_sentence(Rewind)),
    "prunable": (Scope, first_sentence(Scope)),
    "search": (
        Plan,
        "How the search trains. --epochs, --batch-size, --lr and --on-nan set it, too.",
    ),
    "finetune": (
        Plan,
        "How fine-tuning trains: for as many epochs as the search, unless others are set.",
    ),
}
"""Settings that are no parts; their fields are set like those of a part."""


def catalogue(registry: Registry, kind: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """Describe the parts of a kind, by its name in the registry or in options, or of all kinds."""
    listed = {
        name: [_describe_part(entry) for entry in registry.parts[name].values()] for name in KINDS
    }
    listed |= {name: [_describe_settings(name)] for name in SETTINGS}
    listed["pruners"] = [_describe_pruner(name, entry) for name, entry in registry.pruners.items()]
    if kind is None:
        return listed
    names = {**{label.label: name for name, label in KINDS.items()}, "pruner": "pruners"}
    chosen = names.get(kind, kind)
    if chosen not in listed:
        raise UnknownNameError(f"unknown kind of part '{kind}'{did_you_mean(kind, listed)}")
    return {chosen: listed[chosen]}


def catalogue_text(listed: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a catalogue as text."""
    return "\n\n".join(_kind_text(kind, things) for kind, things in listed.items())


def _kind_text(kind: str, things: Sequence[Mapping[str, Any]]) -> str:
    blocks = [_thing_text(thing) for thing in things] or ["  (none)"]
    return "\n".join([kind, *blocks])


def _thing_text(thing: Mapping[str, Any]) -> str:
    """Return one part as text: name and origin, help, fields."""
    argument = f":{thing['argument'].upper()}" if thing.get("argument") else ""
    lines = [
        f"  {thing['name']}{argument}  [{thing['plugin']}, {thing['distribution']}]",
        text_table([""], [[thing["help"]]], indent=6),
    ]
    rows = [_field_row(field) for field in thing.get("fields", [])]
    if rows:
        lines.append(text_table([""] * 4, rows, indent=6))
    return "\n".join(lines)


def _field_row(field: Mapping[str, Any]) -> list[str]:
    """Return the cells of one field: name and default, type, bounds, description."""
    default = field["default"]
    if default is None:
        text = "(must be given)" if field["required"] else "(unset)"
    else:
        text = default if isinstance(default, str) else json.dumps(default)
    bounds = ", ".join(f"{sign} {limit}" for sign, limit in field["bounds"].items())
    return [f"{field['name']} = {text}", field["type"], bounds, field["description"]]


def _describe_part(entry: Entry[type[Part]]) -> dict[str, Any]:
    part = entry.thing
    return {
        "name": part.name,
        "help": first_sentence(part),
        "argument": part.argument,
        "fields": [describe_field(name, info) for name, info in part.model_fields.items()],
        "plugin": entry.plugin,
        "distribution": entry.distribution,
    }


def _describe_settings(name: str) -> dict[str, Any]:
    cls, about = SETTINGS[name]
    return {
        "name": name,
        "help": about,
        "fields": [describe_field(field, info) for field, info in cls.model_fields.items()],
        "plugin": cls.__module__,
        "distribution": "built into gemkit",
    }


def _describe_pruner(name: str, entry: Entry[RecipeData]) -> dict[str, Any]:
    return {
        "name": name,
        "help": entry.thing.get("help", ""),
        "plugin": entry.plugin,
        "distribution": entry.distribution,
    }


def describe_field(name: str, info: FieldInfo) -> dict[str, Any]:
    """Return a field as data: type, bounds, default, description."""
    default = info.get_default(call_default_factory=True, validated_data={})
    return {
        "name": name,
        "type": type_text(info.annotation),
        "required": info.is_required(),
        "default": None if info.is_required() else _plain(default),
        "bounds": bounds(info.metadata),
        "description": info.description or "",
    }


def _plain(default: object) -> object:
    """Return a default as JSON has it, a part by its name."""
    return default.name if isinstance(default, Part) else to_jsonable_python(default)


def type_text(annotation: Any) -> str:  # noqa: ANN401 - any annotation
    """Return a short name for the type of a field."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(arguments[0])
    if origin is Literal:
        return " | ".join(str(argument) for argument in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(type_text(part) for part in arguments if part is not type(None))
    if origin is tuple:
        several = [type_text(part) for part in arguments if part is not Ellipsis]
        return f"[{', '.join(several)}{', …' if Ellipsis in arguments else ''}]"
    return {str: "text", bool: "true | false"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def bounds(metadata: Sequence[Any]) -> dict[str, float]:
    """Return the bounds of a field as sign -> limit; infinity is no bound."""
    return {
        sign: getattr(limit, attribute)
        for limit in metadata
        for cls, (sign, attribute) in _BOUNDS.items()
        if isinstance(limit, cls) and getattr(limit, attribute) not in (math.inf, -math.inf)
    }
