"""`gemkit reproduce`: run a table of the paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemkit.cli.command import (
    Answer,
    Number,
    SectionedCommand,
    answers_json,
    check_folder,
    echo,
    option,
)
from gemkit.cli.options import data_dir_option, download_option, integer_option, plugin_option
from gemkit.cli.paths import PathType
from gemkit.core.memory import during
from gemkit.core.text import number_of

if TYPE_CHECKING:
    from gemkit.plugins.registry import Registry
    from gemkit.reproduce.results import Results
    from gemkit.reproduce.scale import Scale
    from gemkit.reproduce.table import Table
    from gemkit.study.store import Ledger, Row

LEDGER = Path("reproduction.jsonl")
TRY_LEDGER = Path("reproduction-try.jsonl")

EXAMPLES = """\b
Examples:
  gemkit reproduce
  gemkit reproduce fig2-lambda --try
  gemkit reproduce table3-ep-to-gm --data-dir data --seeds 3
  gemkit reproduce table3-ep-to-gm --data-dir data --scale 0.1 --width 0.5 --jobs 2
"""


@click.command(cls=SectionedCommand, epilog=EXAMPLES)
@click.argument("table", required=False)
@option(
    "Runs",
    "--scale",
    type=Number(0, 1, min_open=True),
    metavar="S",
    default=1.0,
    help="Fraction of the epochs (at least 4), of the freeze period (at least 2) and of the "
    "training images (at least 1,000).",
)
@option(
    "Runs",
    "--width",
    type=Number(0, 1, min_open=True),
    metavar="W",
    default=1.0,
    help="Fraction of the network's channels (at least 4 in the first layer).",
)
@option(
    "Runs",
    "--try",
    "attempt",
    is_flag=True,
    help="Run the smallest version on synthetic images, to see that it works; the numbers mean "
    f"nothing, and go to {TRY_LEDGER}.",
)
@integer_option(
    "Runs", "--seeds", "Seeds to run, 0 first.", least=1, show_default="the table's; 1 with --try"
)
@integer_option("Runs", "--jobs", "Runs in parallel.", least=1, default=1)
@option("Runs", "--no-runs", is_flag=True, help="Run nothing; report what the ledger has.")
@data_dir_option("data")
@download_option
@option(
    "Output",
    "--ledger",
    type=PathType(dir_okay=False),
    metavar="FILE",
    show_default=str(LEDGER),
    help="JSON lines, one for each run; runs in the file are not repeated.",
)
@option(
    "Output",
    "--page",
    type=PathType(dir_okay=False, exists=True),
    metavar="FILE",
    help="Also write the table between its markers on this page.",
)
@option(
    "Output",
    "--figures",
    type=PathType(file_okay=False),
    metavar="DIR",
    help="Also draw the figures there, as SVG and PNG.",
)
@answers_json
@plugin_option
def reproduce(table: str | None, **options: Any) -> Answer:  # noqa: ANN401
    """Run a TABLE or figure of the paper, or a smaller version of it, and compare.

    Without TABLE, list them all in the paper's order. Runs in the ledger are not repeated, so the
    same command continues an interrupted table.
    """
    if table is None:
        return _listing(options["data_dir"], options["plugins"])
    return _reproduce(table, **options)


def _listing(folder: Path | None, plugins: Sequence[Path]) -> Answer:
    """List the paper's figures and tables, and what is missing to run them."""
    from gemkit.plugins.loader import load_plugins
    from gemkit.report.tables import text_table
    from gemkit.reproduce.paper import listing, paper
    from gemkit.reproduce.table import tables

    known = tables()
    head = ("in the paper", "entry", "rows", "needs", "what it shows")
    text = text_table(head, listing(known, load_plugins(files=plugins), folder), numbers=(2,))
    way = (
        "✗ is missing: put it into --data-dir, or --download it (weights are downloaded when they "
        "are needed). --try runs an entry without it, on synthetic images."
    )
    data = {
        "tables": {name: table.model_dump(mode="json") for name, table in known.items()},
        "paper": [item.model_dump(mode="json") for item in paper()],
    }
    return Answer(data, f"{text}\n\n{way}")


def _reproduce(
    name: str,
    *,
    scale: float,
    width: float,
    attempt: bool,
    seeds: int | None,
    no_runs: bool,
    ledger: Path | None,
    page: Path | None,
    figures: Path | None,
    plugins: Sequence[Path],
    **how: Any,  # noqa: ANN401 - the rest of what `_complete` takes
) -> Answer:
    """Run what is missing, and report what there is."""
    from gemkit.plugins.loader import load_plugins
    from gemkit.report.pages import check_place
    from gemkit.report.plots import check_canvas
    from gemkit.reproduce.results import Index, check_kind, results_of
    from gemkit.reproduce.table import KEYS, table_of
    from gemkit.study.store import Ledger

    size = _scale(scale, width, page, attempt=attempt)
    registry, table = load_plugins(files=plugins), table_of(name)
    seeds = seeds or (1 if attempt else table.seeds)
    store = Ledger(ledger or (TRY_LEDGER if attempt else LEDGER), KEYS)
    check_kind(store, synthetic=attempt)
    planned = list(table.runs(registry, size, seeds))
    if page is not None:
        check_place(page, name)
    if figures is not None:
        check_canvas()
        check_folder(figures, "--figures")
    if not no_runs:
        _complete(planned, store, registry, plugins, **how)
    results = results_of(table, registry, size, seeds, store)
    text, drawn = _report(name, table, results, size, page, figures)
    rows = list(Index(store).of(planned))
    data = {"table": name, "rows": rows, "figures": [str(file) for file in drawn]}
    return Answer(data, "\n".join([text, *(["", *map(str, drawn)] if drawn else [])]))


def _report(
    name: str,
    table: Table,
    results: Sequence[Results],
    size: Scale,
    page: Path | None,
    figures: Path | None,
) -> tuple[str, list[Path]]:
    """Return the table and the figures that were drawn; write both on the page."""
    from gemkit.report.pages import write_results
    from gemkit.reproduce.comparison import comparison
    from gemkit.reproduce.figures import draw_figures, links

    text = comparison(table, results, size)
    stamp = "synthetic data: the numbers mean nothing" if size.synthetic else ""
    drawn = draw_figures(results, figures, name, table.figures, stamp) if figures else []
    if figures is not None and not drawn:
        echo("note: nothing of this table is measured yet, so there is no figure", err=True)
    if page is not None and figures is None:
        echo("note: the page gets no figures; --figures DIR draws them", err=True)
    if page is not None:
        write_results(page, name, "\n\n".join(filter(None, [text, links(drawn, page)])))
    return text, drawn


def _scale(scale: float, width: float, page: Path | None, *, attempt: bool) -> Scale:
    """Return the scale of the runs; refuse options that contradict `--try`."""
    from gemkit.core.errors import OptionError
    from gemkit.reproduce.scale import Scale
    from gemkit.reproduce.synthetic import TRY

    if not attempt:
        return Scale(scale, width)
    if (scale, width) != (1, 1):
        raise OptionError("--try is as small as possible; leave out --scale and --width")
    if page is not None:
        raise OptionError("--try has no numbers worth a page; leave out --page")
    return TRY


def _complete(
    planned: Sequence[Row],
    store: Ledger,
    registry: Registry,
    plugins: Sequence[Path],
    *,
    jobs: int,
    data_dir: Path | None,
    download: bool,
) -> None:
    """Run what the ledger does not have."""
    from gemkit.reproduce.results import Index
    from gemkit.reproduce.trial import measure

    left = Index(store).missing(planned)
    if left:
        store.check_writable()
    _check_data(left, registry, data_dir, download=download)
    where = {"data_dir": data_dir and str(data_dir), "plugins": [str(one) for one in plugins]}
    runs = number_of(len(planned), "run")
    echo(f"{len(left)} of {runs} to do; results go to {store.path}", err=True)
    store.complete([run | where for run in left], measure, jobs, describe)


def describe(row: Row) -> str:
    """Return a line of progress for a run that has ended."""
    from gemkit.report.tables import percent

    setting = row["setting"]
    run = f"{setting['pruner']} at density {setting['density']:g}, seed {row['seed']}"
    for end in ("collapse", "refused"):
        if end in row:
            return f"{run}: {'collapsed' if end == 'collapse' else end}"
    before, after = percent(row["before"]), percent(row["after"])
    return f"{run}: {before} before fine-tuning, {after} after"


@during("loading the data")
def _check_data(
    runs: Sequence[Row], registry: Registry, folder: Path | None, *, download: bool
) -> None:
    """Load the data set of every run, so that a missing one is an error before anything runs.

    With `download` it is fetched first. Parallel processes then find files and caches ready.
    """
    from gemkit.data.part import DatasetPart

    for data in dict.fromkeys(json.dumps(run["setting"]["dataset"]) for run in runs):
        part = registry.build("datasets", json.loads(data))
        assert isinstance(part, DatasetPart)
        if download:
            part.download(folder)
        part.load(folder)
