"""The reference of the documentation: hooks, kinds of parts and built-in parts, as they are.

`python -m docs.tools.reference docs/reference.md` writes it.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from gemkit.core.events import Event, View
from gemkit.core.probe import Probe
from gemkit.parts.now import Now
from gemkit.parts.part import Part
from gemkit.parts.scores import LearnedScores, MeasuredScores
from gemkit.plugins import hookspecs
from gemkit.plugins.loader import load_plugins
from gemkit.plugins.registry import KINDS, Registry
from gemkit.report.catalogue import catalogue
from gemkit.testing import clauses_of_kind

HEAD = """# Reference

Written by `python -m docs.tools.reference docs/reference.md`; do not edit it by hand.
What the words mean is in [concepts.md](concepts.md), how to write a part in [tutorial.md](tutorial.md).
"""  # noqa: E501 - a line of Markdown
GIVEN = (
    "Import `Now` and `Probe` from `gemkit`, and events from `gemkit.core.events`. `Tensors` is a "
    "dict of tensors by the names of parameters."
)
HOOKS = "A plugin is a module with some of these functions, each marked with `@hookimpl`."
PARTS = (
    "Methods that may be overridden have a default; all others must be defined. The promises of "
    "a kind are what `gemkit.testing` tries."
)


def reference(registry: Registry) -> str:
    """Write the whole page."""
    parts = [HEAD.strip(), *_hooks(), *_kinds(), *_given(), *_built_in(registry)]
    return "\n\n".join(parts) + "\n"


def _hooks() -> Iterator[str]:
    yield from ("## Hooks", HOOKS)
    for name, function in vars(hookspecs).items():
        if name.startswith("gemkit_"):
            yield from (f"### `{name}`", _code(_signature(name, function)), _text(function))


def _kinds() -> Iterator[str]:
    yield from ("## Kinds of parts", PARTS, "### Every part", _promises(Part))
    scores, *others = [kind.base for kind in KINDS.values()]
    bases: list[type[Part]] = [scores, MeasuredScores, LearnedScores, *others]
    for base in bases:
        yield from (f"### `{base.__name__}`", _text(base), _code(_class(base)))
        if clauses_of_kind(base):
            yield _promises(base)


def _given() -> Iterator[str]:
    yield from ("## What parts and observers are given", GIVEN)
    for cls in (Now, Probe, View, *get_args(Event)):
        facts = _facts(cls)
        notes = inspect.get_annotations(cls)
        lines = [
            f"* `{name}: {_annotation(notes[name])}` {facts.get(name, '')}".rstrip()
            for name in notes
            if not name.startswith("_")
        ]
        yield from (f"### `{cls.__name__}`", _text(cls), "\n".join(lines))


def _facts(cls: type) -> dict[str, str]:
    """Return the docstrings of attributes, which stand below them in the source."""
    source = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(source, ast.ClassDef)
    return {
        one.target.id: " ".join(text.value.value.split())
        for one, text in pairwise(source.body)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def _promises(base: type[Part]) -> str:
    """List the contract of a kind, without that of its own base."""
    return "\n".join(f"* {clause.promise}" for clause in clauses_of_kind(base))


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _class(base: type[Part]) -> str:
    """Show what a class adds to its own base: facts, then methods with their exact signatures."""
    lines = [f"class {base.__name__}({base.__bases__[0].__name__}):"]
    own, facts = vars(base), _facts(base)
    notes = inspect.get_annotations(base)
    for name in [name for name in notes if not name.startswith("_")]:
        value = f" = {own[name]!r}" if name in own else ""
        lines.append(f"    {name}: {_annotation(notes[name])}{value}")
        lines += textwrap.wrap(
            facts.get(name, ""), 100, initial_indent="        # ", subsequent_indent="        # "
        )
    for name, member in own.items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function) or name.startswith("model_"):
            continue
        first = (inspect.getdoc(function) or "").split("\n")[0]
        mark = "    @property\n" if isinstance(member, property) else ""
        abstract = getattr(function, "__isabstractmethod__", False)
        kind = "" if abstract else "  # may be overridden"
        lines.append(f"{mark}    {_signature(name, function)}{kind}\n        # {first}")
    return "\n".join(lines if len(lines) > 1 else [f"{lines[0]} ..."])


def _built_in(registry: Registry) -> Iterator[str]:
    yield "## Built-in parts"
    for kind, parts in catalogue(registry).items():
        yield f"### {kind}"
        yield "\n".join(_part(part) for part in parts) or "(none)"


def _part(part: Mapping[str, Any]) -> str:
    lines = [f"* **`{part['name']}`** – {part['help']}"]
    for field in part.get("fields", []):
        limits = ", ".join(f"{sign} {limit}" for sign, limit in field["bounds"].items())
        default = "must be given" if field["required"] else f"default {field['default']!r}"
        told = ", ".join(filter(None, [field["type"], limits, default]))
        lines.append(f"  * `{field['name']}` ({told}): {field['description']}")
    return "\n".join(lines)


def _signature(name: str, function: Any) -> str:  # noqa: ANN401 - any function
    """Return a signature with its annotations as the source spells them, such as `Tensors`."""
    source = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(source, ast.FunctionDef)
    written = {own.arg: own.annotation for own in [*source.args.args, *source.args.kwonlyargs]}
    signature = inspect.signature(function)
    parameters = [
        one.replace(annotation=_written(written[one.name])) for one in signature.parameters.values()
    ]
    exact = signature.replace(parameters=parameters, return_annotation=_written(source.returns))
    return f"def {name}{exact}".replace("'", "")


def _written(annotation: ast.expr | None) -> object:
    return inspect.Signature.empty if annotation is None else ast.unparse(annotation)


def _annotation(note: object) -> str:
    return note if isinstance(note, str) else inspect.formatannotation(note)


def _text(documented: object) -> str:
    """Return a docstring as the page shows it."""
    return inspect.getdoc(documented) or ""


def main(arguments: Sequence[str]) -> None:
    """Write the reference into each of these pages."""
    text = reference(load_plugins(only=()))
    for argument in arguments:
        Path(argument).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
