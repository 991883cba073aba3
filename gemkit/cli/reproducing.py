"""The body of `gemkit reproduce`."""

import json
from collections.abc import Sequence
from pathlib import Path

from gemkit.cli.answers import Answer
from gemkit.cli.screen import echo
from gemkit.parts import DatasetPart
from gemkit.plugins import load_plugins
from gemkit.registry import Registry
from gemkit.report.canvas import check_canvas
from gemkit.report.ledger import Ledger, Row
from gemkit.report.pages import check_place, write_results
from gemkit.report.tables import percent, text_table
from gemkit.reproduce.comparison import comparison
from gemkit.reproduce.figures import draw_figures, links
from gemkit.reproduce.results import results_of
from gemkit.reproduce.scale import Scale
from gemkit.reproduce.table import KEYS, table_of, tables
from gemkit.reproduce.trial import measure
from gemkit.wording import number_of


def listing() -> Answer:
    """List the tables."""
    known = tables()
    rows = [(name, table.source, table.title) for name, table in known.items()]
    data = {name: table.model_dump(mode="json") for name, table in known.items()}
    return Answer({"tables": data}, text_table(("table", "in the paper", "what it shows"), rows))


def start(
    name: str,
    *,
    scale: Scale,
    seeds: int | None,
    jobs: int,
    data_dir: Path | None,
    download: bool,
    ledger: Path,
    page: Path | None,
    figures: Path | None,
    plugins: Sequence[Path],
) -> Answer:
    """Run what is missing, and report what there is; no `jobs` means to run nothing."""
    registry = load_plugins(files=plugins)
    table = table_of(name)
    seeds = seeds or table.seeds
    book = Ledger(ledger, KEYS)
    planned = list(table.runs(registry, scale, seeds))
    if page is not None:
        check_place(page, name)
    if figures is not None:
        check_canvas()
    if jobs:
        left = book.missing(planned)
        _look_at_data(left, registry, data_dir, download=download)
        where = {"data_dir": data_dir and str(data_dir), "plugins": [str(one) for one in plugins]}
        runs = number_of(len(planned), "run")
        echo(f"{len(left)} of {runs} to do; results go to {ledger}", err=True)
        book.complete([run | where for run in left], measure, jobs, told)
    results = results_of(table, registry, scale, seeds, book)
    text = comparison(table, results, scale)
    drawn = draw_figures(results, figures, name) if figures is not None else []
    if figures is not None and not drawn:
        echo("note: nothing of this table is measured yet; there is no figure", err=True)
    if page is not None and figures is None:
        echo("note: the page gets no figures; --figures DIR draws them", err=True)
    if page is not None:
        write_results(page, name, "\n\n".join(filter(None, [text, links(drawn, page)])))
    data = {"table": name, "rows": book.of(planned), "figures": [str(file) for file in drawn]}
    return Answer(data, "\n".join([text, *(["", *map(str, drawn)] if drawn else [])]))


def told(row: Row) -> str:
    """Word what came of a run, for whoever waits for the others."""
    setting = row["setting"]
    run = f"{setting['pruner']} at density {setting['density']:g}, seed {row['seed']}"
    if "collapse" in row:
        return f"{run}: collapsed"
    before, after = percent(row["before"]), percent(row["after"])
    return f"{run}: {before} before fine-tuning, {after} after"


def _look_at_data(
    runs: Sequence[Row], registry: Registry, folder: Path | None, *, download: bool
) -> None:
    """Load every data set that a run names; one that is not there says so before anything runs.

    It is fetched first where that is wanted. Processes side by side find files and caches ready.
    """
    for data in dict.fromkeys(json.dumps(run["setting"]["dataset"]) for run in runs):
        part = registry.build("datasets", json.loads(data))
        assert isinstance(part, DatasetPart)
        if download:
            part.download(folder)
        part.load(folder)
