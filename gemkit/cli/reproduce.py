"""`gemkit reproduce`: a table of the paper, run again."""

from collections.abc import Sequence
from pathlib import Path

import click

from gemkit.cli.answers import Answer, answers_json
from gemkit.cli.numbers import Number
from gemkit.cli.recipe_options import plugin_option
from gemkit.cli.sections import SectionedCommand, option
from gemkit.cli.world_options import data_dir_option, download_option

LEDGER = Path("reproduction.jsonl")

EXAMPLES = """\b
Examples:
  gemkit reproduce
  gemkit reproduce ep-to-gm --data-dir data --seeds 3
  gemkit reproduce ep-to-gm --data-dir data --scale 0.1 --width 0.5 --jobs 2
"""


@click.command(cls=SectionedCommand, short_help="Run a table of the paper again.", epilog=EXAMPLES)
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
    "--seeds",
    type=click.IntRange(1),
    metavar="N",
    show_default="the table's",
    help="Seeds to run, 0 first.",
)
@option("Runs", "--jobs", type=click.IntRange(1), metavar="N", default=1, help="Runs side by side.")
@option("Runs", "--no-runs", is_flag=True, help="Run nothing; report what the ledger has.")
@data_dir_option("data")
@download_option
@option(
    "Output",
    "--ledger",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    default=LEDGER,
    help="JSON lines, one for every run; what is there already is not run again.",
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
def reproduce(
    table: str | None,
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
    """Run a TABLE of the paper, or a smaller version of it, and compare; without TABLE list them.

    Runs that are in the ledger are not repeated, so an interrupted table goes on where it was.
    """
    from gemkit.cli import reproducing
    from gemkit.reproduce.scale import Scale

    if table is None:
        return reproducing.listing()
    return reproducing.start(
        table,
        scale=Scale(scale, width),
        seeds=seeds,
        jobs=0 if no_runs else jobs,
        data_dir=data_dir,
        download=download,
        ledger=ledger,
        page=page,
        figures=figures,
        plugins=plugins,
    )
