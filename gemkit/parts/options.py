"""Validate plain data, and turn pydantic's errors into sentences.

Data comes from TOML files, the command line and plugins. Every problem reads
`role.field = value: what is expected`, and all of them are reported together.
"""

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from gemkit.core.errors import OptionError, did_you_mean
from gemkit.core.text import escaped
from gemkit.parts.part import Part

Model = TypeVar("Model", bound=BaseModel)


def part_from(
    cls: type[Part], fields: Mapping[str, Any], label: str
) -> tuple[Part | None, list[str]]:
    """Build a part from plain data, or return None and all problems.

    Parts within the part are passed as objects.
    """
    inner = {name: value for name, value in fields.items() if isinstance(value, Part)}
    plain = {name: value for name, value in fields.items() if name not in inner}
    part, problems = from_data(cls, plain, label=label, title=f"{label} '{cls.name}'")
    return part.model_copy(update=inner) if part is not None else None, problems


def from_data(
    cls: type[Model],
    data: object,
    *,
    label: str,
    title: str,
) -> tuple[Model | None, list[str]]:
    """Build any model from plain data.

    It is validated as JSON text: strict fields then accept a list for a tuple, which TOML and JSON
    do not have, but never a float or a string for an integer.
    """
    text = json.dumps(data, default=str)
    return attempt(lambda: cls.model_validate_json(text), cls, label=label, title=title)


def attempt(
    build: Callable[[], Model],
    model: type[Model],
    *,
    label: str,
    title: str,
    ignore: Iterable[str] = (),
) -> tuple[Model | None, list[str]]:
    """Run a validation, or return None and one sentence for each problem.

    `label` is put before the names of fields, and `title` names the model. Problems with the
    fields in `ignore` are left out.
    """
    try:
        return build(), []
    except ValidationError as error:
        ignored = set(ignore)
        sentences = [
            _sentence(problem, label, title, model)
            for problem in error.errors(include_url=False)
            if ignored.isdisjoint(problem["loc"][:1])
        ]
        return None, _alternatives_joined(sentences)


def _alternatives_joined(sentences: Sequence[str]) -> list[str]:
    """Join what the members of a union expect of one value: `x = 3: should be a or b`."""
    joined: dict[str, str] = {}
    for sentence in sentences:
        start, words, expected = sentence.partition(": should be ")
        if words and start in joined:
            joined[start] += f" or {expected}"
        else:
            joined[start if words else sentence] = sentence
    return list(joined.values())


def _untagged(model: type[BaseModel], location: Sequence[Any]) -> list[Any]:
    """Remove the names that pydantic gives to members of unions from a location."""
    for number, step in enumerate(location, 1):
        field = model.model_fields.get(step)
        if field is None:
            break
        members = [field.annotation]
        if get_origin(field.annotation) in (Union, UnionType):
            members = [one for one in get_args(field.annotation) if one is not NoneType]
        if len(members) > 1:
            return [*location[:number], *location[number + 1 :]]
        if not (isinstance(members[0], type) and issubclass(members[0], BaseModel)):
            break
        model = members[0]
    return list(location)


def _sentence(problem: Any, label: str, title: str, model: type[BaseModel]) -> str:  # noqa: ANN401
    """Describe one problem of a pydantic error: the field, its value, and what is expected."""
    location = [escaped(str(step)) for step in _untagged(model, problem["loc"])]
    path = ".".join([label, *location] if label else location)
    if problem["type"] == "extra_forbidden":
        return f"{path} does not exist" + (
            did_you_mean(location[-1], _known(model, location[:-1])) or f"; {title} has no options"
        )
    if problem["type"] == "missing":
        return f"{path} must be given"
    expected = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{path} = {reprlib.repr(problem['input'])}: {expected}"


def _known(model: type[BaseModel], location: Sequence[str]) -> Iterable[str]:
    """Return the fields of a model, or of the model inside it at this location."""
    for step in location:
        kinds = [model.model_fields[step].annotation]
        kinds += get_args(kinds[0])
        inner = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
        if not inner:
            return ()
        model = inner[0]
    return model.model_fields


def report(title: str, problems: Sequence[str]) -> OptionError:
    """Make one error of all problems."""
    if len(problems) == 1:
        return OptionError(f"{title}: {problems[0]}")
    return OptionError("\n  - ".join([f"{title}: {len(problems)} problems", *problems]))


def argument_field(cls: type[Part], argument: str, label: str) -> dict[str, Any]:
    """Return the field that `name:argument` sets; digits become a number if the field takes one."""
    if cls.argument is None:
        raise OptionError(
            f"{label} '{cls.name}' takes nothing after a colon, but got {argument!r}; "
            f"write '{cls.name}' alone"
        )
    annotation = cls.model_fields[cls.argument].annotation
    if int in (annotation, *get_args(annotation)):
        try:
            return {cls.argument: int(argument)}
        except ValueError:
            pass  # left as text: validation reports the problem
    return {cls.argument: argument}
