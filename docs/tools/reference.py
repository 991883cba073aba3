"""Write the reference: hooks, kinds of parts, their types, and built-in parts.

python -m docs.tools.reference docs/reference.md
"""

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.tools.source import annotations, code, facts, methods, signature, text_of
from docs.tools.types import OF_KINDS, example, field_text, given_types
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
    "All types that the signatures above mention, and those that `gemkit.run`, `gemkit.search` and "
    "`gemkit.finetune` take. `gemkit.testing` has the tiny network and data of the examples."
)
FINAL = {"inner"}
"""Methods of parts that are not for authors."""
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
            yield from (f"### `{name}`", code(signature(name, function)), text_of(function))


def _kinds() -> Iterator[str]:
    yield from ("## Kinds of parts", PARTS, "### `Part`", text_of(Part))
    yield from (code(_class(Part)), _promises(Part))
    scores, *others = [kind.base for kind in KINDS.values()]
    bases: list[type[Part]] = [scores, MeasuredScores, LearnedScores, *others]
    for base in bases:
        yield from (f"### `{base.__name__}`", text_of(base), code(_class(base)))
        if clauses_of_kind(base):
            yield _promises(base)
        if base.__name__ in OF_KINDS:
            yield from example(OF_KINDS[base.__name__])


def _given() -> Iterator[str]:
    yield from ("## What parts and observers are given", GIVEN)
    yield from given_types()


def _promises(base: type[Part]) -> str:
    """List the contract of a kind, without that of its base."""
    return "\n".join(f"* {clause.promise}" for clause in clauses_of_kind(base))


def _class(base: type[Part]) -> str:
    """Show what a class adds to its base: attributes, then methods with exact signatures."""
    lines = [f"class {base.__name__}({base.__bases__[0].__name__}):"]
    own, texts = vars(base), facts(base)
    for name, note in annotations(base).items():
        value = f" = {own[name]!r}" if name in own else ""
        lines.append(f"    {name}: {note}{value}")
        lines += textwrap.wrap(
            texts.get(name, ""), 100, initial_indent="        # ", subsequent_indent="        # "
        )
    for name, function, is_property in methods(base):
        if name in FINAL:
            continue
        mark = "    @property\n" if is_property else ""
        abstract = getattr(function, "__isabstractmethod__", False)
        kind = "" if abstract else "  # may be overridden"
        first = text_of(function).split("\n")[0]
        lines.append(f"{mark}    {signature(name, function)}{kind}\n        # {first}")
    return "\n".join(lines if len(lines) > 1 else [f"{lines[0]} ..."])


def _built_in(registry: Registry) -> Iterator[str]:
    yield "## Built-in parts"
    for kind, parts in catalogue(registry).items():
        yield f"### {kind}"
        yield "\n".join(_part(part) for part in parts) or "(none)"


def _part(part: Mapping[str, Any]) -> str:
    lines = [f"* **`{part['name']}`** – {part['help']}"]
    return "\n".join([*lines, *(f"  {field_text(own)}" for own in part.get("fields", []))])


def main(arguments: Sequence[str]) -> None:
    """Write the reference into each of these pages."""
    text = reference(load_plugins(only=()))
    for argument in arguments:
        Path(argument).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
