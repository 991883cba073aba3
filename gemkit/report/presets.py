"""Presets as rows and as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from gemkit.plugins.registry import Registry
from gemkit.presets.preset import Expected, Preset
from gemkit.report.tables import text_table

HEADER = ("preset", "before", "after", "source")


def preset_rows(registry: Registry, beginning: str | None = None) -> list[dict[str, Any]]:
    """Describe every preset, or those whose name starts with `beginning`."""
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
    """Return presets as a text table."""
    return text_table(HEADER, [cells(row) for row in rows], numbers=(1, 2))


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a preset's row."""
    expected = Expected(**row["expected"]) if row["expected"] else None
    return (row["name"], *_figures(expected), expected.source if expected else "")


def _figures(expected: Expected | None) -> tuple[str, str]:
    """Return the expected accuracies before and after fine-tuning, or empty texts."""
    values = (expected.before, expected.after) if expected else (None, None)
    return (_figure(values[0]), _figure(values[1]))


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
