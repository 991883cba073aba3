"""`gemkit report`: a page, tables and figures of a study or a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemkit.cli.command import (
    Answer,
    Number,
    SectionedCommand,
    answers_json,
    check_folder,
    option,
)
from gemkit.cli.paths import PathType

if TYPE_CHECKING:
    from gemkit.sanity.check import Expected

EXAMPLES = """\b
Examples:
  gemkit report studies/mine
  gemkit report runs/gem_miner-conv4-digits-d0.05-s0
  gemkit report runs                    # all runs in a folder
  gemkit report studies/mine --format tex,pdf --out paper
  gemkit report studies/mine/report/records.jsonl   # results without their study
"""


@click.command(cls=SectionedCommand, epilog=EXAMPLES)
@click.argument("source", metavar="STUDY|RUN|RECORDS", type=PathType())
@option(
    "Output",
    "--out",
    type=PathType(),
    metavar="DIR",
    show_default="STUDY|RUN/report, or NAME-report beside RECORDS",
    help="Folder for the report; files of an earlier report are replaced.",
)
@option(
    "Output",
    "--format",
    "formats",
    metavar="NAME,…",
    show_default="html,csv,jsonl,md,tex,svg,pdf,png",
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
def report(source: Path, out: Path | None, formats: str | None, margin: float) -> Answer:
    """Write what a STUDY, a RUN, all runs in a folder or a file of RECORDS have found.

    One HTML page that loads nothing from the network, CSV files, tables in Markdown and LaTeX
    (booktabs), and figures. Of an unfinished study it shows what there is. RECORDS is the
    records.jsonl of an earlier report, or several of them in one file.
    """
    from gemkit.report.written import formats_of, write_report

    chosen = None if formats is None else formats_of(formats)
    is_file = source.is_file()
    name, folder = source.resolve().stem if is_file else source.resolve().name, source.parent
    out = out or (folder / f"{name}-report" if is_file else source / "report")
    if source.exists():
        check_folder(out, "--out")
    records, expects = _records(source)
    made = write_report(
        records,
        folder if is_file else source,
        out,
        title=name,
        formats=chosen,
        margin=margin,
        expects=expects,
    )
    files = [str(file) for file in made.files]
    data = {"report": files[0], "files": files, "summary": made.summary, "note": made.note}
    text = f"{files[0]}\n{made.summary}"
    return Answer(data, f"{text}\n{made.note}" if made.note else text)


def _records(source: Path) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Expected]]:
    """Return the records of a study, of runs or of a file, and what to expect of controls."""
    from gemkit.core.errors import OptionError
    from gemkit.plugins.loader import load_plugins
    from gemkit.runs.recorded import positive_checks, run_records
    from gemkit.sanity.check import SanityCheck
    from gemkit.study.stage_store import StageStore
    from gemkit.study.store import Ledger
    from gemkit.study.study import load

    parts = load_plugins().parts["checks"]
    expects: dict[str, Expected] = {
        name: entry.thing.expects
        for name, entry in parts.items()
        if issubclass(entry.thing, SanityCheck)
    }
    if source.is_file():
        try:
            return Ledger(source, ()).rows(cut=False), expects
        except OptionError as error:
            raise OptionError(
                f"{source} is no file of records ({error}); give the records.jsonl of a report, "
                "or the folder of a study, of a run, or of runs"
            ) from error
    if StageStore(source).is_study():
        return load(source).results(), expects
    return run_records(source), expects | dict.fromkeys(positive_checks(source), "same")
