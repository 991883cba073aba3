"""`gemkit runs` and `gemkit resume`: what runs there are, and how one goes on."""

from pathlib import Path
from typing import Any

import click

from gemkit.cli.answers import Answer, answers_json
from gemkit.cli.output_options import checkpoint_option
from gemkit.cli.recipe_options import plugin_option
from gemkit.cli.sections import SectionedCommand, option
from gemkit.cli.world_options import data_dir_option


@click.command(cls=SectionedCommand, short_help="Go on with an interrupted run.")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@option(
    "Network and data",
    "--model",
    metavar="NAME",
    show_default="the run's",
    help="Needed again for a network of your own, and for one with weights from elsewhere.",
)
@data_dir_option("the run's")
@checkpoint_option(None)
@answers_json
@plugin_option
def resume(**options: Any) -> Answer:  # noqa: ANN401
    """Go on with a RUN that was interrupted, from its last checkpoint.

    On a CPU it ends with the same ticket, metrics and weights, to the bit, as a run that nobody
    interrupted. Plugin files, networks of your own and networks that start from weights of a
    library or a file have to be given again: a run's folder alone runs no code and fetches nothing.
    """
    from gemkit.cli.resuming import start

    return start(**options)


@click.command(cls=SectionedCommand, short_help="List runs and how far they are.")
@click.argument("folder", metavar="[DIR]", default="runs", type=click.Path(path_type=Path))
@answers_json
def runs(folder: Path) -> Answer:
    """List the runs in DIR (`runs` unless another is given): state, pruner, density, accuracy.

    A run is running, interrupted (`gemkit resume` goes on with it), failed, or done.
    """
    from gemkit.report.runs import runs_data, runs_text

    listed = runs_data(folder)
    return Answer({"runs": listed}, runs_text(listed, folder))
