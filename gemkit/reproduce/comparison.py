"""Our results beside the paper's: a Markdown table, and the differences of protocol."""

from collections.abc import Iterator, Sequence

from gemkit.reproduce.results import Results
from gemkit.reproduce.scale import Scale
from gemkit.reproduce.table import Table
from gemkit.study.store import mean_and_spread

NOTHING = "–"


def comparison(table: Table, results: Sequence[Results], scale: Scale) -> str:
    """Return the table; numbers in parentheses are the paper's."""
    checks = list(dict.fromkeys(check for one in results for check in one.line.checks))
    head = ["method", "target density", "actual density", "before", "after", *checks]
    head += ["search epochs", "seeds"]
    lines = [head, ["---"] * len(head), *(_cells(one, checks) for one in results)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    protocol = "\n".join(f"* {sentence}" for sentence in differences(table, results, scale))
    return f"{text}\n\n{_LEGEND}\n\nDifferences from the paper's protocol:\n\n{protocol}"


_LEGEND = (
    "Test accuracy in percent before and after fine-tuning, and of controls after fine-tuning: "
    "mean ± standard deviation over seeds. In parentheses: the paper's. ¹ some tickets lost whole "
    "layers."
)


def _cells(one: Results, checks: Sequence[str]) -> list[str]:
    paper = one.line.paper
    target = f"{one.preset.density:g}"
    seeds = str(len(one.rows)) + (f", {one.collapsed} collapsed" if one.collapsed else "")
    if not one.rows:
        ours = [NOTHING] * (4 + len(checks))
        seeds = f"{one.collapsed} collapsed" if one.collapsed else "0"
    else:
        ours = [
            f"{one.kept:.4f}{'¹' if any(row['empty_layers'] for row in one.rows) else ''}",
            mean_and_spread([row["before"] for row in one.rows]),
            mean_and_spread([row["after"] for row in one.rows]),
            *(_spread(one.controls(check)) for check in checks),
            f"{max(row['search_epochs'] for row in one.rows)}",
        ]
    theirs = [None, paper.before, paper.after, *map(paper.checks.get, checks), paper.epochs]
    cells = [_beside(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    return [one.line.method, target, *cells, seeds]


def _spread(values: Sequence[float]) -> str:
    return mean_and_spread(values) if values else ""


def _beside(ours: str, paper: float | None) -> str:
    return ours if paper is None else f"{ours} ({paper:g})"


def differences(table: Table, results: Sequence[Results], scale: Scale) -> Iterator[str]:
    """Yield sentences on how the runs differ from the paper's."""
    yield from table.differences
    if scale.time != 1:
        yield (
            f"scale {scale.time:g}: this fraction of the epochs, of the periods between freezes "
            "and of the training images; scores learn at the default rate for the shorter search"
        )
    if scale.width != 1:
        yield f"width {scale.width:g}: this fraction of the channels"
    notes = dict.fromkeys(one.preset.note for one in results if one.preset.note)
    yield from notes
