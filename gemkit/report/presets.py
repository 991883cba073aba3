"""Presets as a table, for the terminal and for the documentation.

`python -m gemkit.report.presets docs/presets.md` renews the list in that page.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemkit.plugins import load_plugins
from gemkit.preset import Expected, Preset
from gemkit.registry import Registry
from gemkit.report.pages import with_results
from gemkit.report.tables import text_table

HEADER = ("preset", "before", "after", "source")
PLACE = "presets"
"""The name of the list's place on a page."""


def preset_rows(registry: Registry, beginning: str | None = None) -> list[dict[str, Any]]:
    """Describe every preset whose name begins so."""
    return [
        {
            "name": name,
            "help": entry.thing.help,
            "pruner": entry.thing.pruner,
            "density": entry.thing.density,
            "expected": _expected(entry.thing),
            "note": entry.thing.note,
            "plugin": entry.plugin,
            "distribution": entry.distribution,
        }
        for name, entry in registry.presets.items()
        if name.startswith(beginning or "")
    ]


def _expected(preset: Preset) -> dict[str, Any] | None:
    return preset.expected.model_dump(exclude_none=True) if preset.expected else None


def preset_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Lay the presets out for the terminal."""
    return text_table(HEADER, [_cells(row) for row in rows], numbers=(1, 2))


def preset_list(registry: Registry) -> str:
    """Lay the presets out as Markdown, with their notes."""
    lines = [f"| {' | '.join(HEADER)} | what it is |", "|---|---|---|---|---|"]
    for row in preset_rows(registry):
        name, *cells = _cells(row)
        told = f"{row['help']}. {row['note']}" if row["note"] else row["help"]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {told} |")
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    expected = Expected(**row["expected"]) if row["expected"] else None
    return (row["name"], *_figures(expected), expected.source if expected else "")


def _figures(expected: Expected | None) -> tuple[str, str]:
    """Write what is expected before and after fine-tuning, where anything is."""
    values = (expected.before, expected.after) if expected else (None, None)
    return (_figure(values[0]), _figure(values[1]))


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def main(arguments: Sequence[str]) -> None:
    """Renew the list in each of these pages."""
    text = preset_list(load_plugins(only=()))
    for argument in arguments:
        page = Path(argument)
        page.write_text(with_results(page.read_text(encoding="utf-8"), PLACE, text), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
