"""The types that signatures mention: fields, methods, and an example that runs."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

import gemkit
from docs.tools.source import annotations, assigned, code, facts, methods, signature, text_of
from gemkit.report.catalogue import describe_field

EXAMPLES = Path(__file__).parents[1] / "examples"
OF_KINDS = {"Structure": "structure", "Objective": "objective"}
"""Examples of kinds of parts that the tutorial does not write."""
_LONGEST = 40
"""Characters of a default that is shown."""


class Given(NamedTuple):
    """A type, the module that defines it, and the file of its example."""

    name: str
    module: str
    example: str | None = None


GIVEN = [
    Given("Tensors", "gemkit.core.tensors", "tensors"),
    Given("Batch", "gemkit.core.probe", "batch"),
    Given("Wanted", "gemkit.core.probe", "wanted"),
    Given("Probe", "gemkit.core.probe", "probe"),
    Given("Now", "gemkit.parts.now", "now"),
    Given("Targets", "gemkit.parts.objective"),
    Given("Freeze", "gemkit.parts.schedule", "freeze"),
    Given("Shares", "gemkit.core.selection", "shares"),
    Given("Data", "gemkit.data.source", "data"),
    Given("Source", "gemkit.data.source", "source"),
    Given("Ticket", "gemkit.tickets.ticket", "ticket"),
    Given("Layer", "gemkit.tickets.ticket"),
    Given("TicketInfo", "gemkit.tickets.info", "ticket_info"),
    Given("FreezeRecord", "gemkit.tickets.info"),
    Given("CheckContext", "gemkit.sanity.context", "check_context"),
    Given("Expected", "gemkit.sanity.check"),
    Given("Plan", "gemkit.training.plan", "plan"),
    Given("Runtime", "gemkit.training.plan", "runtime"),
    Given("RunConfig", "gemkit.runs.config", "run_config"),
    Given("RunSettings", "gemkit.runs.config"),
    Given("Event", "gemkit.core.events", "event"),
    Given("PhaseStarted", "gemkit.core.events"),
    Given("StepEnded", "gemkit.core.events"),
    Given("EpochEnded", "gemkit.core.events"),
    Given("Scoring", "gemkit.core.events"),
    Given("Froze", "gemkit.core.events"),
    Given("Collapsed", "gemkit.core.events"),
    Given("Noted", "gemkit.core.events"),
    Given("View", "gemkit.core.events", "view"),
]


def given_types() -> Iterator[str]:
    """Write a section for every type."""
    for given in GIVEN:
        module = import_module(given.module)
        thing = getattr(module, given.name)
        home = "gemkit" if given.name in gemkit.__all__ else given.module
        yield from (f"### `{given.name}`", f"`from {home} import {given.name}`")
        if not isinstance(thing, type) or thing.__module__ != given.module:
            yield from (code(assigned(module, given.name)), facts(module).get(given.name, ""))
        else:
            yield from (text_of(thing), *_class(thing))
        if given.example is not None:
            yield from example(given.example)


def _class(cls: type) -> Iterator[str]:
    """Write fields and methods."""
    own = _fields(cls) if issubclass(cls, BaseModel) else _attributes(cls)
    if own:
        yield "\n".join(own)
    lines = [
        line for name, function, plain in methods(cls) for line in _method(name, function, plain)
    ]
    if lines:
        yield code("\n".join([f"class {cls.__name__}:", *lines]))


def _attributes(cls: type) -> list[str]:
    """List annotated attributes, with the text below each."""
    texts = facts(cls)
    return [
        f"* `{name}: {note}` {texts.get(name, '')}".rstrip()
        for name, note in annotations(cls).items()
    ]


def _fields(cls: type[BaseModel]) -> list[str]:
    """List the fields of data, with bounds, defaults and descriptions."""
    return [field_text(describe_field(name, info)) for name, info in cls.model_fields.items()]


def field_text(field: dict[str, Any]) -> str:
    """Describe a field in one item of a list."""
    limits = ", ".join(f"{sign} {limit}" for sign, limit in field["bounds"].items())
    shown = repr(field["default"])
    default = "must be given" if field["required"] else f"default {shown}"
    if len(shown) > _LONGEST:
        default = "with its own defaults"
    notes = ", ".join(filter(None, [field["type"], limits, default]))
    return f"* `{field['name']}` ({notes}): {field['description']}"


def _method(name: str, function: Any, is_property: bool) -> Iterator[str]:  # noqa: ANN401
    """Write a method with the first line of its docstring."""
    if is_property:
        yield "    @property"
    yield f"    {signature(name, function)}"
    yield f"        # {text_of(function).splitlines()[0]}"


def example(name: str) -> Iterator[str]:
    """Write an example, its docstring above it."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring is not None
    yield f"Example. {docstring}"
    yield code(text.partition('"""\n\n')[2].strip())
