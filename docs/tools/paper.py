"""Write the list of the paper's figures and tables into docs/reproduction.md.

python -m docs.tools.paper docs/reproduction.md
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from gemkit.plugins.loader import load_plugins
from gemkit.report.pages import with_results
from gemkit.reproduce.paper import listing
from gemkit.reproduce.table import by_name, tables

PLACE = "paper"
"""The name of the list's place on a page."""


def paper_list() -> str:
    """Lay the figures and tables out as Markdown, in the paper's order."""
    known = tables()
    lines = ["| in the paper | entry | also called | rows | needs | what it shows |"]
    lines.append("|---|---|---|---|---|---|")
    for number, entry, rows, needed, shows in listing(known, load_plugins(only=()), None):
        others = by_name(known)[entry].aliases if entry != "–" else ()
        also = ", ".join(f"`{name}`" for name in others if name != entry)
        name = entry if entry == "–" else f"`{entry}`"
        cells = (number, name, also, rows, needed.replace(" ✗", ""), shows)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Renew the list in each of these pages."""
    text = paper_list()
    for argument in arguments:
        page = Path(argument)
        page.write_text(with_results(page.read_text(encoding="utf-8"), PLACE, text), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
