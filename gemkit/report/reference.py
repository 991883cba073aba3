"""The reference of the documentation: hooks, kinds of parts and built-in parts, as they are.

`python -m gemkit.report.reference docs/reference.md` writes it anew.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemkit import hookspecs
from gemkit.parts import LearnedScores, MeasuredScores, Part
from gemkit.plugins import load_plugins
from gemkit.registry import KINDS, Registry
from gemkit.report.catalogue import catalogue
from gemkit.testing import clauses_of_kind

HEAD = """# Reference

Written by `python -m gemkit.report.reference docs/reference.md`; do not edit it by hand.
What the words mean is in [concepts.md](concepts.md), how to write a part in [tutorial.md](tutorial.md).
"""  # noqa: E501 - a line of Markdown
HOOKS = "A plugin is a module with some of these functions, each marked with `@hookimpl`."
PARTS = (
    "Methods that may be overridden have a default; all others must be defined. The promises of "
    "a kind are what `gemkit.testing` tries."
)


def reference(registry: Registry) -> str:
    """Write the whole page."""
    return "\n\n".join([HEAD.strip(), *_hooks(), *_kinds(), *_built_in(registry)]) + "\n"


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


def _promises(base: type[Part]) -> str:
    """List the contract of a kind, without that of its own base."""
    return "\n".join(f"* {clause.promise}" for clause in clauses_of_kind(base))


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _class(base: type[Part]) -> str:
    """Show what a class adds to its own base: facts, then methods with their exact signatures."""
    lines = [f"class {base.__name__}({base.__bases__[0].__name__}):"]
    own = vars(base)
    notes = inspect.get_annotations(base)
    for name in [name for name in notes if not name.startswith("_")]:
        value = f" = {own[name]!r}" if name in own else ""
        lines.append(f"    {name}: {_annotation(notes[name])}{value}")
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
    return f"def {name}{inspect.signature(function)}".replace("'", "")


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
