"""Tables fit for a paper, in Markdown and LaTeX: methods by density, and controls."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from gemkit.core.text import number_of
from gemkit.report.groups import Group, Place, densities_of, places_of, series_of
from gemkit.report.judged import Judged
from gemkit.report.quoting import latex, markdown
from gemkit.report.spread import INTERVAL, Spread, figure, shown_worse
from gemkit.report.verdicts import worded
from gemkit.sanity.verdicts import LEAST_SEEDS
from gemkit.training.metrics import Metric

_FAR = 0.05
"""An actual density is named where it differs from the target by more than this part of it."""

Rank = Literal["best", "near", ""]


class Cell(NamedTuple):
    """One method at one density."""

    group: Group
    before: Spread | None
    after: Spread | None
    rank: Rank
    """The best mean of the column, not shown to be worse than it, or neither."""

    @property
    def kept(self) -> str:
        """The actual density in percent, if it is far from the target."""
        target, actual = self.group.density, self.group.actual
        return f"{100 * actual:.3g}" if abs(actual - target) > _FAR * target else ""


class Table(NamedTuple):
    """What one network and data set gave: a row for each method, a column for each density."""

    place: Place
    metric: Metric
    densities: tuple[float, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]

    @property
    def seeds(self) -> int | None:
        """The number of seeds, if it is the same in all cells."""
        counts = {cell.after.n for _, row in self.rows for cell in row if cell and cell.after}
        return counts.pop() if len(counts) == 1 else None


def tables(groups: Sequence[Group]) -> list[Table]:
    """Return one table for each network, data set and metric."""
    return [
        _table(place, [one for one in groups if one.place == place]) for place in places_of(groups)
    ]


def _table(place: Place, groups: Sequence[Group]) -> Table:
    densities = tuple(densities_of(groups))
    columns = {
        density: _column([one for one in groups if one.density == density]) for density in densities
    }
    rows = tuple(
        (label, tuple(columns[density].get(label) for density in densities))
        for label in series_of(groups)
    )
    return Table(place, groups[0].metric, densities, rows)


def _column(groups: Sequence[Group]) -> dict[str, Cell]:
    """Return the cells of one density by method."""
    afters = {one.label: one.spread("after") for one in groups}
    known = [one for one in groups if afters[one.label] is not None]
    best = min(known, key=lambda one: _error(one, afters), default=None)
    cells = {}
    for one in groups:
        rank: Rank = ""
        if best is not None and len(known) > 1 and one in known:
            rank = _rank(one, best, afters)
        cells[one.label] = Cell(one, one.spread("before"), afters[one.label], rank)
    return cells


def _error(group: Group, afters: dict[str, Spread | None]) -> float:
    after = afters[group.label]
    assert after is not None
    return group.metric.error(after.mean)


def _rank(group: Group, best: Group, afters: dict[str, Spread | None]) -> Rank:
    if _error(group, afters) == _error(best, afters):
        return "best"
    worse = shown_worse(group.by_seed("after"), best.by_seed("after"), group.metric)
    return "" if worse else "near"


def caption(table: Table) -> str:
    """Say what the numbers of a table are, and what bold and the dagger mean."""
    unit = " in percent" if table.metric.share else ""
    seeds = number_of(table.seeds, "seed") if table.seeds else "the number of seeds in brackets"
    return (
        f"{table.place.model} on {table.place.dataset}: test {table.metric.name}{unit} before → "
        f"after fine-tuning, mean; ± is half the {INTERVAL}; {seeds}. Columns are target "
        "densities. Bold: best mean of a column. †: not shown to be worse than it, because the "
        f"interval of the paired difference includes zero or fewer than {LEAST_SEEDS} seeds are "
        "common; not corrected for several comparisons."
    )


# --- Markdown ---


def markdown_tables(groups: Sequence[Group], controls: Sequence[Judged], title: str) -> str:
    """Return all tables as Markdown."""
    parts = [f"# {markdown(title)}"]
    for table in tables(groups):
        head = ["method", *(f"{100 * density:g} %" for density in table.densities)]
        body = [
            [markdown(label), *(_markdown_cell(cell, table) for cell in row)]
            for label, row in table.rows
        ]
        about = markdown(caption(table))
        parts += [f"## {markdown(table.place.text())}", _markdown_table(head, body), about]
    if controls:
        body = [_markdown_controls(one) for one in controls]
        parts += ["## Controls", _markdown_table(CONTROL_HEAD, body), CONTROL_CAPTION]
    return "\n\n".join(parts) + "\n"


def _markdown_controls(one: Judged) -> list[str]:
    """Return the cells of one control; those with names are escaped."""
    place, label, density, check, *numbers = control_cells(one)
    return [markdown(place), markdown(label), density, markdown(check), *numbers]


def _markdown_cell(cell: Cell | None, table: Table) -> str:
    if cell is None:
        return ""
    text = value_text(cell, table)
    if cell.rank == "best":
        before, arrow, after = text.rpartition("→ ")
        text = f"{before}{arrow}**{after}**"
    notes = notes_of(cell, table)
    return f"{text}{'†' * (cell.rank == 'near')}" + (f" ({', '.join(notes)})" if notes else "")


def value_text(cell: Cell, table: Table) -> str:
    """Return `before → after ± half`, as far as it is known."""
    if cell.after is None:
        return "–"
    before = "" if cell.before is None else f"{figure(cell.before.mean, table.metric)} → "
    return before + cell.after.text(table.metric)


def notes_of(cell: Cell, table: Table) -> list[str]:
    """Return what else a cell says: seeds, actual density, and what is missing."""
    seeds = f"n {cell.after.n}" if cell.after and table.seeds is None else ""
    kept = f"keeps {cell.kept} %" if cell.kept else ""
    return [one for one in (seeds, kept, cell.group.collapsed, cell.group.lacking) if one]


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# --- controls ---

CONTROL_HEAD = (
    "network · data",
    "method",
    "density",
    "control",
    "after",
    "worse by",
    "seeds",
    "verdict",
)
CONTROL_CAPTION = (
    "The test metric of a control after fine-tuning, and by how much it is worse than its ticket, "
    f"paired over seeds; shares in percent. ± is half the {INTERVAL}, and brackets hold that of "
    "the difference. A method passes if the whole interval lies above the margin."
)


def control_cells(one: Judged) -> list[str]:
    """Return the cells of one control."""
    verdict, metric = one.verdict, one.group.metric
    drop = figure(verdict.drop, metric)
    if verdict.interval is not None:
        drop += " [{}, {}]".format(*(figure(end, metric) for end in verdict.interval))
    return [
        one.group.place.text(),
        one.group.label,
        f"{100 * one.group.density:g} %",
        one.check,
        "–" if one.after is None else one.after.text(metric),
        drop.replace("-", "−"),
        str(verdict.seeds),
        worded(verdict),
    ]


# --- LaTeX ---


def latex_tables(groups: Sequence[Group], controls: Sequence[Judged], title: str) -> str:
    """Return all tables as LaTeX; they need the package booktabs."""
    parts = [f"% Tables of {latex(title)}, made by gemkit report. Needs \\usepackage{{booktabs}}."]
    for number, table in enumerate(tables(groups), 1):
        head = ["method", *(rf"{100 * density:g}\,\%" for density in table.densities)]
        body = [
            [latex(label), *(_latex_cell(cell, table) for cell in row)] for label, row in table.rows
        ]
        about = latex(caption(table))
        columns = "l" + "c" * len(table.densities)
        parts.append(_latex_table(columns, head, body, about, f"results-{number}"))
    if controls:
        body = [[latex(cell) for cell in control_cells(one)] for one in controls]
        head = [latex(cell) for cell in CONTROL_HEAD]
        parts.append(_latex_table("llrlrrrl", head, body, latex(CONTROL_CAPTION), "controls"))
    return "\n\n".join(parts) + "\n"


def _latex_cell(cell: Cell | None, table: Table) -> str:
    if cell is None or cell.after is None:
        lacking = cell.group.lacking if cell else ""
        return rf"{{\scriptsize {lacking}}}" if lacking else "--"
    mean = figure(cell.after.mean, table.metric)
    text = rf"\textbf{{{mean}}}" if cell.rank == "best" else mean
    if cell.before is not None:
        text = rf"{figure(cell.before.mean, table.metric)} $\to$ {text}"
    if cell.after.half is not None:
        text += rf" {{\scriptsize$\pm${figure(cell.after.half, table.metric)}}}"
    if cell.rank == "near":
        text += r"$^\dagger$"
    notes = latex(", ".join(notes_of(cell, table)))
    return text + (rf" {{\scriptsize({notes})}}" if notes else "")


def _latex_table(
    columns: str, head: Sequence[str], rows: Sequence[Sequence[str]], about: str, label: str
) -> str:
    lines = [
        r"\begin{table}",
        r"  \centering\small",
        rf"  \caption{{{about}}}",
        rf"  \label{{tab:{label}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        rf"    {' & '.join(head)} \\",
        r"    \midrule",
        *(rf"    {' & '.join(cells)} \\" for cells in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)
