"""`gemkit check`: is a ticket better than what chance would give?"""

from pathlib import Path
from typing import Any

import click

from gemkit.cli.answers import Answer, answers_json
from gemkit.cli.machine_options import training_machine_options
from gemkit.cli.numbers import Number
from gemkit.cli.recipe_options import fields_option, plugin_option
from gemkit.cli.sections import SectionedCommand, option
from gemkit.cli.world_options import world_options

EXAMPLES = """\b
Examples:
  gemkit check runs/gem_miner-conv4-digits-d0.05-s0
  gemkit check ticket.safetensors --checks shuffle,reinit:kaiming_normal,random_ticket:erk
  gemkit check runs/… --seeds 10        # five are measured already: five more
"""
SEEDS = 5


@click.command(cls=SectionedCommand, short_help="Compare a ticket with controls.", epilog=EXAMPLES)
@click.argument("source", metavar="RUN|TICKET", type=click.Path(path_type=Path))
@option(
    "Checks",
    "--checks",
    "names",
    metavar="NAME,…",
    default="shuffle,reinit,invert",
    help="Which controls; see `gemkit parts checks`.",
)
@option(
    "Checks",
    "--seeds",
    type=click.IntRange(1),
    metavar="N",
    default=SEEDS,
    help="How many seeds, the ticket's own first.",
)
@option(
    "Checks",
    "--margin",
    type=Number(0, 1, max_open=True),
    metavar="X",
    default=0.01,
    help="The drop in accuracy that counts, as a fraction.",
)
@option(
    "Training",
    "--finetune-epochs",
    type=int,
    metavar="N",
    show_default="as in the run, else 30",
    help="Epochs of fine-tuning, for ticket and controls alike.",
)
@fields_option("a check named above, model, dataset or finetune")
@world_options(None, None)
@training_machine_options
@option(
    "Output",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    show_default="beside the ticket",
    help="Where checks.json and the picture go.",
)
@option("Output", "--force", is_flag=True, help="Replace checks that were made another way.")
@answers_json
@plugin_option
def check(**options: Any) -> Answer:  # noqa: ANN401
    """Compare a ticket with controls that a method with real insight should beat.

    For every seed a ticket is searched as the given one was, and fine-tuned along with its
    controls by the same plan. What is in checks.json already is not measured again.
    """
    from gemkit.cli.checking import start

    return start(**options)
