"""`gemkit report`: a page, tables and figures of a study or a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemkit.cli.command import Answer, Number, SectionedCommand, answers_json, option

if TYPE_CHECKING:
    from gemkit.sanity.check import Expected

EXAMPLES = """\b
Examples:
  gemkit report studies/mine
  gemkit report runs/gem_miner-conv4-digits-d0.05-s0
  gemkit report runs                    # all runs in a folder
  gemkit report studies/mine --format tex,pdf --out paper
"""


@click.command(cls=SectionedCommand, epilog=EXAMPLES)
@click.argument("folder", metavar="STUDY|RUN", type=click.Path(path_type=Path))
@option(
    "Output",
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    show_default="STUDY|RUN/report",
    help="Folder for the report; files of an earlier report are replaced.",
)
@option(
    "Output",
    "--format",
    "formats",
    metavar="NAME,…",
    show_default="html,csv,md,tex,svg,pdf,png",
    help="What to write: the page, tables, figures.",
)
@option(
    "Checks",
    "--margin",
    type=Number(0, 1, max_open=True),
    metavar="X",
    default=0.01,
    help="The smallest drop that counts: a share, or relative to the tickets' mean.",
)
@answers_json
def report(folder: Path, out: Path | None, formats: str | None, margin: float) -> Answer:
    """Write what a STUDY, a RUN or all runs in a folder have found.

    One HTML page that loads nothing from elsewhere, CSV files, tables in Markdown and LaTeX
    (booktabs), and figures. Of an unfinished study it shows what there is.
    """
    from gemkit.report.written import formats_of, write_report

    chosen = None if formats is None else formats_of(formats)
    records, expects = _records(folder)
    made = write_report(
        records,
        folder,
        out or folder / "report",
        title=folder.resolve().name,
        formats=chosen,
        margin=margin,
        expects=expects,
    )
    files = [str(file) for file in made.files]
    data = {"report": files[0], "files": files, "summary": made.summary, "note": made.note}
    text = f"{files[0]}\n{made.summary}"
    return Answer(data, f"{text}\n{made.note}" if made.note else text)


def _records(folder: Path) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Expected]]:
    """Return the records of a study or of runs, and the controls that should change nothing."""
    from gemkit.plugins.loader import load_plugins
    from gemkit.runs.recorded import positive_checks, run_records
    from gemkit.sanity.check import SanityCheck
    from gemkit.study.stage_store import StageStore
    from gemkit.study.study import load

    parts = load_plugins().parts["checks"]
    expects: dict[str, Expected] = {
        name: entry.thing.expects
        for name, entry in parts.items()
        if issubclass(entry.thing, SanityCheck)
    }
    if StageStore(folder).is_study():
        return load(folder).results(), expects
    return run_records(folder), expects | dict.fromkeys(positive_checks(folder), "same")
