"""Write the list of presets into docs/presets.md.

python -m docs.tools.presets docs/presets.md
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from gemkit.plugins.loader import load_plugins
from gemkit.plugins.registry import Registry
from gemkit.report.pages import with_results
from gemkit.report.presets import HEADER, cells, preset_rows

PLACE = "presets"
"""The name of the list's place on a page."""


def preset_list(registry: Registry) -> str:
    """Lay the presets out as Markdown, with their notes."""
    lines = [f"| {' | '.join(HEADER)} | what it is |", "|---|---|---|---|---|"]
    for row in preset_rows(registry):
        name, *figures = cells(row)
        text = f"{row['help']}. {row['note']}" if row["note"] else row["help"]
        lines.append(f"| `{name}` | {' | '.join(figures)} | {text} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Update the list in each of these pages."""
    text = preset_list(load_plugins(only=()))
    for argument in arguments:
        page = Path(argument)
        page.write_text(with_results(page.read_text(encoding="utf-8"), PLACE, text), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
