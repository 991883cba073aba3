"""`gemkit reproduce`: run a table of the paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemkit.cli.command import Answer, Number, SectionedCommand, answers_json, echo, option
from gemkit.cli.options import data_dir_option, download_option, integer_option, plugin_option
from gemkit.core.text import number_of

if TYPE_CHECKING:
    from gemkit.plugins.registry import Registry
    from gemkit.study.store import Row

LEDGER = Path("reproduction.jsonl")

EXAMPLES = """\b
Examples:
  gemkit reproduce
  gemkit reproduce ep-to-gm --data-dir data --seeds 3
  gemkit reproduce ep-to-gm --data-dir data --scale 0.1 --width 0.5 --jobs 2
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
@integer_option("Runs", "--seeds", "Seeds to run, 0 first.", least=1, show_default="the table's")
@integer_option("Runs", "--jobs", "Runs in parallel.", least=1, default=1)
@option("Runs", "--no-runs", is_flag=True, help="Run nothing; report what the ledger has.")
@data_dir_option("data")
@download_option
@option(
    "Output",
    "--ledger",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    default=LEDGER,
    help="JSON lines, one for each run; runs in the file are not repeated.",
)
@option(
    "Output",
    "--page",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="Also write the table between its markers on this page.",
)
@option(
    "Output",
    "--figures",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Also draw the figures there, as SVG and PNG.",
)
@answers_json
@plugin_option
def reproduce(table: str | None, **options: Any) -> Answer:  # noqa: ANN401
    """Run a TABLE of the paper, or a smaller version of it, and compare; without TABLE, list them.

    Runs in the ledger are not repeated, so the same command continues an interrupted table.
    """
    return _listing() if table is None else _reproduce(table, **options)


def _listing() -> Answer:
    """List the tables."""
    from gemkit.report.tables import text_table
    from gemkit.reproduce.table import tables

    known = tables()
    rows = [(name, table.source, table.title) for name, table in known.items()]
    data = {name: table.model_dump(mode="json") for name, table in known.items()}
    return Answer({"tables": data}, text_table(("table", "in the paper", "what it shows"), rows))


def _reproduce(
    name: str,
    *,
    scale: float,
    width: float,
    seeds: int | None,
    jobs: int,
    no_runs: bool,
    data_dir: Path | None,
    download: bool,
    ledger: Path,
    page: Path | None,
    figures: Path | None,
    plugins: Sequence[Path],
) -> Answer:
    """Run what is missing, and report what there is."""
    from gemkit.plugins.loader import load_plugins
    from gemkit.report.pages import check_place, write_results
    from gemkit.report.plots import check_canvas
    from gemkit.reproduce.comparison import comparison
    from gemkit.reproduce.figures import draw_figures, links
    from gemkit.reproduce.results import results_of
    from gemkit.reproduce.scale import Scale
    from gemkit.reproduce.table import KEYS, table_of
    from gemkit.reproduce.trial import measure
    from gemkit.study.store import Ledger

    registry, size = load_plugins(files=plugins), Scale(scale, width)
    table = table_of(name)
    seeds = seeds or table.seeds
    store = Ledger(ledger, KEYS)
    planned = list(table.runs(registry, size, seeds))
    if page is not None:
        check_place(page, name)
    if figures is not None:
        check_canvas()
    if not no_runs:
        left = store.missing(planned)
        _check_data(left, registry, data_dir, download=download)
        where = {"data_dir": data_dir and str(data_dir), "plugins": [str(one) for one in plugins]}
        runs = number_of(len(planned), "run")
        echo(f"{len(left)} of {runs} to do; results go to {ledger}", err=True)
        store.complete([run | where for run in left], measure, jobs, describe)
    results = results_of(table, registry, size, seeds, store)
    text = comparison(table, results, size)
    drawn = draw_figures(results, figures, name) if figures is not None else []
    if figures is not None and not drawn:
        echo("note: nothing of this table is measured yet, so there is no figure", err=True)
    if page is not None and figures is None:
        echo("note: the page gets no figures; --figures DIR draws them", err=True)
    if page is not None:
        write_results(page, name, "\n\n".join(filter(None, [text, links(drawn, page)])))
    data = {"table": name, "rows": store.of(planned), "figures": [str(file) for file in drawn]}
    return Answer(data, "\n".join([text, *(["", *map(str, drawn)] if drawn else [])]))


def describe(row: Row) -> str:
    """Return a line of progress for a run that has ended."""
    from gemkit.report.tables import percent

    setting = row["setting"]
    run = f"{setting['pruner']} at density {setting['density']:g}, seed {row['seed']}"
    if "collapse" in row:
        return f"{run}: collapsed"
    before, after = percent(row["before"]), percent(row["after"])
    return f"{run}: {before} before fine-tuning, {after} after"


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
