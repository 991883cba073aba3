"""Validate a part class: its name, its docstring, its fields and their defaults."""

import inspect
import json
import re
import reprlib
import types
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, to_jsonable_python

from gemkit.parts.objective import Objective
from gemkit.parts.part import Part
from gemkit.parts.recipe import PART_NAME
from gemkit.parts.regularizer import Regularizer
from gemkit.plugins.registry import KINDS

API_VERSION = 2
"""Rises when a plugin that was right needs changes."""
_PLAIN = {str, int, float, bool, type(None)}


def part_problems(cls: type[Part]) -> list[str]:
    """List why a class cannot be registered as a part."""
    problems = []
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        problems.append(f"is abstract; define {missing}")
    name = getattr(cls, "name", None)
    if "name" in cls.model_fields:
        problems.append("makes a field of name; set it without a type, as in name = '...'")
    elif not isinstance(name, str):
        problems.append("has no name; give the class an attribute name = '...'")
    elif not re.fullmatch(PART_NAME, name):
        problems.append(f"is named '{name}'; use lower-case letters, digits and _, a letter first")
    # An inherited docstring says nothing about this part.
    if not (cls.__dict__.get("__doc__") or "").strip():
        problems.append("has no docstring; write one, it is shown as help")
    if cls.argument is not None and cls.argument not in cls.model_fields:
        problems.append(f"takes its argument in '{cls.argument}', which is not one of its fields")
    if cls.init_state is not Part.init_state and not issubclass(cls, Regularizer | Objective):
        problems.append(
            "defines init_state, but only regularizers and objectives have a state; compute from "
            "the arguments alone"
        )
    return [*problems, *_constant_problems(cls), *_signature_problems(cls), *_field_problems(cls)]


def _kinds(cls: type[Part]) -> list[type]:
    """List the classes of gemkit that a part is based on."""
    return [base for base in cls.__mro__ if base.__module__.startswith("gemkit.")]


def _constant_problems(cls: type[Part]) -> Iterator[str]:
    """Yield constants of the kind, such as `soft`, that the class sets to something else."""
    declared = {
        name: get_args(annotation)[0]
        for base in _kinds(cls)
        for name, annotation in inspect.get_annotations(base, eval_str=True).items()
        if str(get_origin(annotation)) == "typing.ClassVar" and name != "name"
    }
    for name, annotation in declared.items():
        if name in cls.model_fields:
            yield f"makes a field of {name}; set it without a type, as in {name} = ..."
            continue
        value = getattr(cls, name)
        try:
            _strict(annotation).validate_python(value)
        except ValidationError as error:
            wanted = error.errors()[0]["msg"].removeprefix("Input ")
            yield f"sets {name} = {reprlib.repr(value)}, which {wanted}"


@cache
def _strict(annotation: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - any annotation
    return TypeAdapter(annotation, config=ConfigDict(strict=True))


def _signature_problems(cls: type[Part]) -> Iterator[str]:
    """Yield methods that gemkit cannot call as it calls those of the kind."""
    for base in _kinds(cls):
        for name, method in vars(base).items():
            own = getattr(cls, name)
            if name.startswith("_") or not inspect.isfunction(method) or own is method:
                continue
            if not callable(own):
                yield f"has {reprlib.repr(own)} in place of the method {name}"
                return
            wanted = inspect.signature(method).parameters.values()
            named = {one.name: None for one in wanted if one.kind is one.KEYWORD_ONLY}
            try:
                inspect.signature(own).bind(*[None] * (len(wanted) - len(named)), **named)
            except TypeError:
                yield (
                    f"defines {name}{inspect.signature(own)}, which gemkit calls as "
                    f"{name}({', '.join(one.name for one in wanted)}) (plugin API {API_VERSION})"
                )
                return


def _field_problems(cls: type[Part]) -> Iterator[str]:
    """Yield why fields cannot be listed, written to a recipe file or read back."""
    try:
        cls.model_rebuild()  # resolves forward references
    except PydanticUndefinedAnnotation as error:
        yield f"has a field whose type '{error.name}' is not defined"
        return
    defaults: dict[str, Any] = {}
    for name, info in cls.model_fields.items():
        if _holds_part(info.annotation):
            problem = _inner_problem(info)
        else:
            problem = _annotation_problem(info)
            if problem is None and not info.is_required():
                problem = _default_problem(info, defaults, name)
        if problem is not None:
            yield f"has a field '{name}' {problem}"
    if not inspect.isabstract(cls):
        yield from _refused_defaults(cls, defaults)


def _holds_part(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    """Whether a type is a part, or contains one."""
    is_part = isinstance(annotation, type) and issubclass(annotation, Part)
    return is_part or any(_holds_part(argument) for argument in get_args(annotation))


def _inner_problem(info: FieldInfo) -> str | None:
    """Say why a part within the part could not be built from a recipe."""
    kinds = {kind.base: kind.base.__name__ for kind in KINDS.values()}
    if info.annotation not in kinds:
        return f"that holds a part; its type must be a kind, one of {', '.join(kinds.values())}"
    return "that holds a part, and so needs a default" if info.is_required() else None


def _annotation_problem(info: FieldInfo) -> str | None:
    """Say why the type or description of a field is invalid."""
    if not isinstance(info.description, str | None):
        return "whose description is not a string"
    annotation: Any = info.annotation
    if _is_plain(annotation):
        return None
    try:
        TypeAdapter(annotation).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticUserError):
        return "of a type that JSON cannot express; use str, numbers, bool or tuples of them"
    return None


def _is_plain(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    """Return whether a type is obviously valid; making a JSON schema is slow."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType, tuple):
        return all(argument is Ellipsis or _is_plain(argument) for argument in arguments)
    return annotation in _PLAIN or origin is Literal


def _default_problem(info: FieldInfo, defaults: dict[str, Any], name: str) -> str | None:
    """Say why a default is invalid; add a valid one to `defaults`."""
    try:
        default = info.get_default(call_default_factory=True, validated_data=dict(defaults))
    except Exception as error:  # a factory is code of the plugin
        return f"whose default_factory failed with {type(error).__name__}: {error}"
    # TOML has no null: None is written by omitting the field, so it must be the default.
    if type(None) in get_args(info.annotation) and default is not None:
        return "that may be None, so None must be its default"
    try:
        hash(default)
    except TypeError:
        return f"with a mutable default, a {type(default).__name__}; use a tuple"
    try:
        plain = to_jsonable_python(default)
        json.dumps(plain, allow_nan=False)
    except (PydanticSerializationError, ValueError):
        shown = " ".join(reprlib.repr(default).split())
        return f"with the default {shown}, which cannot be written as JSON"
    defaults[name] = plain
    return None


def _refused_defaults(cls: type[Part], defaults: dict[str, Any]) -> Iterator[str]:
    """Yield defaults that the class refuses; pydantic does not validate defaults."""
    given = {name: value for name, value in defaults.items() if value is not None}
    try:
        cls.model_validate_json(json.dumps(given))
    except ValidationError as error:
        for flaw in error.errors(include_url=False):
            if flaw["type"] == "missing":
                continue  # a required field
            where = f"the default of '{flaw['loc'][0]}'" if flaw["loc"] else "its own defaults"
            yield f"refuses {where}: {flaw['msg']}"
    except Exception as error:  # a validator is code of the plugin
        yield f"fails to validate its defaults with {type(error).__name__}: {error}"
