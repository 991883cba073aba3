"""Examining one part class: can people name it, read about it, set its fields and build it?"""

import inspect
import json
import re
import reprlib
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, to_jsonable_python

from gemkit.parts import Part
from gemkit.recipe import PART_NAME

_PLAIN = {str, int, float, bool, type(None)}


def part_problems(cls: type[Part]) -> list[str]:
    """Say everything that keeps a class from being a part people can name, read and build."""
    problems = []
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        problems.append(f"is abstract; define {missing}")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or "name" in cls.model_fields:
        problems.append("has no name; give the class an attribute name = '...'")
    elif not re.fullmatch(PART_NAME, name):
        problems.append(f"is named '{name}'; use small letters, digits and _, a letter first")
    # The docstring must be its own: a base class's says nothing about this part.
    if not (cls.__dict__.get("__doc__") or "").strip():
        problems.append("has no docstring; write one, it is shown as help")
    if cls.argument is not None and cls.argument not in cls.model_fields:
        problems.append(f"takes its argument in '{cls.argument}', which is not one of its fields")
    return problems + list(_field_problems(cls))


def _field_problems(cls: type[Part]) -> Iterator[str]:
    """Yield what keeps fields from being listed, written into a recipe file and read back."""
    try:
        cls.model_rebuild()  # does nothing unless an annotation could not be resolved so far
    except PydanticUndefinedAnnotation as error:
        yield f"has a field whose type '{error.name}' is not defined"
        return
    defaults: dict[str, Any] = {}
    for name, info in cls.model_fields.items():
        problem = _annotation_problem(info)
        if problem is None and not info.is_required():
            problem = _default_problem(info, defaults, name)
        if problem is not None:
            yield f"has a field '{name}' {problem}"
    if not inspect.isabstract(cls):
        yield from _refused_defaults(cls, defaults)


def _annotation_problem(info: FieldInfo) -> str | None:
    """Say why a field's type or description cannot be shown, or its values not be typed in."""
    if not isinstance(info.description, str | None):
        return "whose description is not a text"
    annotation: Any = info.annotation
    if _is_plain(annotation):
        return None
    try:
        TypeAdapter(annotation).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticUserError):
        return "of a type that JSON cannot express; use text, numbers, true/false or tuples of them"
    return None


def _is_plain(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    """Tell at once that a type is fine, which almost all are: making a schema takes time."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType, tuple):
        return all(argument is Ellipsis or _is_plain(argument) for argument in arguments)
    return annotation in _PLAIN or origin is Literal


def _default_problem(info: FieldInfo, defaults: dict[str, Any], name: str) -> str | None:
    """Say why a default cannot be shown, written or shared; a good one joins `defaults`."""
    try:
        default = info.get_default(call_default_factory=True, validated_data=dict(defaults))
    except Exception as error:  # a factory is the plugin's own code
        return f"whose default_factory failed with {type(error).__name__}: {error}"
    # TOML has no null: None is written by leaving the field out, so it must be the default.
    if type(None) in get_args(info.annotation) and default is not None:
        return "that may be None, so None must be its default"
    try:
        hash(default)
    except TypeError:
        return f"with a default that can change, a {type(default).__name__}; use a tuple"
    try:
        plain = to_jsonable_python(default)
        json.dumps(plain, allow_nan=False)
    except (PydanticSerializationError, ValueError):
        shown = " ".join(reprlib.repr(default).split())
        return f"with the default {shown}, which cannot be written as JSON"
    defaults[name] = plain
    return None


def _refused_defaults(cls: type[Part], defaults: dict[str, Any]) -> Iterator[str]:
    """Yield defaults the class itself refuses: pydantic looks at them only when they are given."""
    given = {name: value for name, value in defaults.items() if value is not None}
    try:
        cls.model_validate_json(json.dumps(given))
    except ValidationError as error:
        for flaw in error.errors(include_url=False):
            if flaw["type"] == "missing":
                continue  # has no default
            where = f"the default of '{flaw['loc'][0]}'" if flaw["loc"] else "its own defaults"
            yield f"refuses {where}: {flaw['msg']}"
    except Exception as error:  # a validator is the plugin's own code
        yield f"fails to validate its defaults with {type(error).__name__}: {error}"
