"""From plain data to validated values, and from pydantic's complaints to sentences.

Data arrives from TOML files, the command line and plugins. Every problem is worded as
`role.field = value: what is expected`, and all of them are reported together.
"""

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from gemkit.errors import OptionError, did_you_mean
from gemkit.parts import Part
from gemkit.wording import escaped

Model = TypeVar("Model", bound=BaseModel)


def part_from(
    cls: type[Part], fields: Mapping[str, Any], label: str
) -> tuple[Part | None, list[str]]:
    """Build a part from plain data; where that fails, return None and what is wrong."""
    return from_data(cls, fields, label=label, title=f"{label} '{cls.name}'")


def from_data(
    cls: type[Model],
    data: object,
    *,
    label: str,
    title: str,
) -> tuple[Model | None, list[str]]:
    """Build any model from plain data.

    The data takes the way over JSON text, where strict fields still take a list for a tuple (TOML
    and JSON have no tuples) but never a float or a string for an integer.
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
    """Run a validation; where it fails, return None and one sentence for each problem.

    `label` stands before the names of fields and `title` names the whole. Problems with the
    fields in `ignore` are left out.
    """
    try:
        return build(), []
    except ValidationError as error:
        ignored = set(ignore)
        return None, [
            _sentence(problem, label, title, model)
            for problem in error.errors(include_url=False)
            if ignored.isdisjoint(problem["loc"][:1])
        ]


def _sentence(problem: Any, label: str, title: str, model: type[BaseModel]) -> str:  # noqa: ANN401
    """Word one problem of a pydantic error: the field, the value given, and what is expected."""
    location = [escaped(str(step)) for step in problem["loc"]]
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
    """Return the fields of a model, or of the model that lies in it at this place."""
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
    """Return the field that `name:argument` fills; digits become a number where one is wanted."""
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
            pass  # left as text: validation words the problem
    return {cls.argument: argument}
