"""The table of pruners in the documentation, written from the registry.

`python -m docs.tools.methods docs/methods.md` updates it in place.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemkit.parts.part import Part
from gemkit.parts.recipe import ROLES, Recipe, part_data
from gemkit.plugins.loader import load_plugins
from gemkit.plugins.registry import Registry

BEGIN, END = "<!-- begin: written by python -m docs.tools.methods -->", "<!-- end -->"


def methods_table(registry: Registry) -> str:
    """Return all pruners as a Markdown table: a column for every role, and one for other fields."""
    lines = [["pruner", *ROLES, "besides"], ["---"] * (len(ROLES) + 2)]
    for name in registry.pruners:
        recipe = registry.recipe(name)
        filled = recipe.parts()
        parts = [_part_cell(filled[role]) if role in filled else "" for role in ROLES]
        lines.append([f"`{name}`", *parts, _besides(recipe)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def renewed(page: str, table: str) -> str:
    """Return a page with the text between its two markers replaced."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _part_cell(part: Part) -> str:
    """Show a part by name, with the fields that differ from their defaults."""
    defaults = {name: info.default for name, info in type(part).model_fields.items()}
    data = part_data(part) | {name: f"`{own.name}`" for name, own in part.inner().items()}
    own = {name: value for name, value in data.items() if value != defaults.get(name)}
    return _words({f"`{own.pop('name')}`": own})


def _besides(recipe: Recipe) -> str:
    """Show the recipe's own fields that differ from their defaults."""
    own = {
        name: value
        for name, value in recipe.to_data().items()
        if name in ("train", "rewind", "finalize", "density")
        and value != Recipe.model_fields[name].default
    }
    return _words(own)


def _words(fields: Mapping[str, Any]) -> str:
    """Write fields as `name value, name value`."""
    return ", ".join(f"{name} {_text(value)}".strip() for name, value in fields.items())


def _text(value: Any) -> str:  # noqa: ANN401 - any plain value
    if isinstance(value, Mapping):
        return _words(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str]) -> None:
    """Update the table in each of these pages."""
    table = methods_table(load_plugins(only=()))
    for argument in arguments:
        page = Path(argument)
        page.write_text(renewed(page.read_text(encoding="utf-8"), table), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
