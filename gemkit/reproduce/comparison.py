"""Our results beside the paper's: a Markdown table, and the differences of protocol."""

from collections.abc import Iterator, Sequence

from gemkit.reproduce.properties import finetunable, passes_checks, prunes_at_init
from gemkit.reproduce.results import Results
from gemkit.reproduce.scale import Scale
from gemkit.reproduce.table import Table
from gemkit.study.store import mean_and_spread

NOTHING = "–"
SYNTHETIC = "**Synthetic data: the numbers mean nothing.**"
_MARKS = {True: "✓", False: "✗", None: NOTHING, "passes": "✓", "fails": "✗"}


def comparison(table: Table, results: Sequence[Results], scale: Scale) -> str:
    """Return the table; numbers in parentheses are the paper's."""
    properties = table.columns == "properties"
    lines = list(_properties(results) if properties else _accuracies(results))
    lines.insert(1, ["---"] * len(lines[0]))
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    protocol = _list(differences(table, results, scale))
    return "\n\n".join(
        filter(
            None,
            [
                SYNTHETIC if scale.synthetic else "",
                text,
                _PROPERTIES if properties else _LEGEND,
                f"What the paper's text says:\n\n{_list(table.text)}" if table.text else "",
                f"Differences from the paper's protocol:\n\n{protocol}" if protocol else "",
            ],
        )
    )


_LEGEND = (
    "Test accuracy in percent before and after fine-tuning, and of controls after fine-tuning: "
    "mean ± standard deviation over seeds. In parentheses: the paper's. ¹ some tickets lost whole "
    "layers."
)
_PROPERTIES = (
    "Prunes at initialization: no weight is trained before the ticket is there. Fine-tunable: "
    "fine-tuning improves the tickets, and they reach the accuracy of Smart Ratio's at least. "
    "Passes: the verdict on every control, over seeds (docs/sanity-checks.md). In parentheses: the "
    "paper's."
)


def _list(sentences: Sequence[str] | Iterator[str]) -> str:
    return "\n".join(f"* {sentence}" for sentence in sentences)


def _accuracies(results: Sequence[Results]) -> Iterator[list[str]]:
    """Yield the head of a table of accuracies, and its rows."""
    checks = list(dict.fromkeys(check for one in results for check in one.line.checks))
    head = ["method", "target density", "actual density", "before", "after", *checks]
    yield [*head, "search epochs", "seeds"]
    for one in results:
        yield _cells(one, checks)


def _cells(one: Results, checks: Sequence[str]) -> list[str]:
    paper = one.line.paper
    target = f"{one.preset.density:g}"
    if not one.rows:
        ours = [NOTHING] * (4 + len(checks))
    else:
        ours = [
            f"{one.kept:.4f}{'¹' if any(row['empty_layers'] for row in one.rows) else ''}",
            mean_and_spread([row["before"] for row in one.rows]),
            mean_and_spread([row["after"] for row in one.rows]),
            *(_spread(one.controls(check)) for check in checks),
            _search_epochs(one),
        ]
    theirs = [
        paper.density,
        paper.before,
        paper.after,
        *map(paper.checks.get, checks),
        paper.epochs,
    ]
    cells = [_beside(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    return [one.line.method, target, *cells, _seeds(one)]


def _properties(results: Sequence[Results]) -> Iterator[list[str]]:
    """Yield the head of a table of what methods do, and its rows."""
    columns = ["prunes at initialization", "fine-tunable", "passes sanity checks"]
    head = ["method", "target density", *columns, "search epochs", "fine-tuning epochs"]
    yield [*head, "before", "after", "seeds"]
    for one in results:
        paper, rows = one.line.paper, one.rows
        passes = passes_checks(one)
        yield [
            one.line.method,
            f"{one.preset.density:g}",
            _mark(prunes_at_init(one), paper.at_init),
            _mark(finetunable(one, results), paper.finetunable),
            _mark(passes, paper.passes),
            _beside(_search_epochs(one), paper.epochs),
            str(one.preset.finetuning.epochs),
            *(_spread([row[stage] for row in rows]) or NOTHING for stage in ("before", "after")),
            _seeds(one),
        ]


def _mark(ours: bool | str | None, paper: bool | None) -> str:
    return f"{_MARKS.get(ours, str(ours))} ({_MARKS[paper]})"


def _search_epochs(one: Results) -> str:
    return str(max(row["search_epochs"] for row in one.rows)) if one.rows else NOTHING


def _seeds(one: Results) -> str:
    words = [str(len(one.rows))] if one.rows or not (one.collapsed or one.refused) else []
    if one.collapsed:
        words.append(f"{one.collapsed} collapsed")
    return ", ".join([*words, "refused"] if one.refused else words)


def _spread(values: Sequence[float]) -> str:
    return mean_and_spread(values) if values else ""


def _beside(ours: str, paper: float | None) -> str:
    return ours if paper is None else f"{ours} ({paper:g})"


def differences(table: Table, results: Sequence[Results], scale: Scale) -> Iterator[str]:
    """Yield sentences on how the runs differ from the paper's."""
    if table.plot_only:
        yield "plot only: the paper prints no accuracies of this figure"
    yield from table.differences
    if scale.synthetic:
        yield (
            "synthetic images of the same shape and number of classes, a network of 4 channels "
            "without pretrained weights, 2 epochs, and the cube roots of all densities"
        )
    if scale.time != 1:
        yield (
            f"scale {scale.time:g}: this fraction of the epochs, of the periods between freezes "
            "and of the training images; scores learn at the default rate for the shorter search"
        )
    if scale.width != 1:
        yield f"width {scale.width:g}: this fraction of the channels"
    for one in results:
        if one.refused:
            yield f"{one.line.method} at density {one.preset.density:g} is refused: {one.refused}"
    notes = dict.fromkeys(one.preset.note for one in results if one.preset.note)
    yield from notes
