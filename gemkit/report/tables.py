"""Tables as plain text, and the tables of a ticket."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from gemkit.core.text import escaped
from gemkit.tickets.ticket import Layer, Ticket

_WIDEST = 100


def layer_table(ticket: Ticket) -> str:
    """Return a table of what each layer keeps, and of the total."""
    rows = [_layer_row(layer) for layer in ticket.layers]
    everything = ("all", "", f"{ticket.kept:,}", f"{ticket.prunable:,}", f"{ticket.density:.4f}")
    return text_table(
        ("layer", "shape", "kept", "of", "density"), [*rows, everything], numbers=(2, 3, 4)
    )


def _layer_row(layer: Layer) -> tuple[str, ...]:
    density = layer.kept / layer.prunable if layer.prunable else 0.0
    shape = "x".join(str(size) for size in layer.shape)
    return layer.name, shape, f"{layer.kept:,}", f"{layer.prunable:,}", f"{density:.4f}"


def facts(rows: Mapping[str, str]) -> str:
    """Return names and values in two columns."""
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {escaped(value)}" for name, value in rows.items())


def percent(fraction: float) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * fraction:.1f} %"


def text_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    indent: int = 0,
) -> str:
    """Return a table without lines; the columns `numbers` are aligned right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(header))
    for place, title in enumerate(header):
        table.add_column(
            title, justify="right" if place in numbers else "left", overflow="fold", no_wrap=False
        )
    for row in rows:
        table.add_row(*map(escaped, row))
    out = StringIO()
    console = Console(file=out, width=_width(), color_system=None, markup=False, emoji=False)
    console.print(Padding(table, (0, 0, 0, indent), expand=False))
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n"))


def wide_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()
) -> str:
    """Return a table whose lines are as long as they need to be, for pipes: no name is broken."""
    cells = [list(header), *([escaped(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if place in numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def _width() -> int:
    """Return the width of the terminal, at least 60 and at most 100."""
    return max(60, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))
