"""`gemkit check`: is a ticket better than its controls?"""

from typing import Any

import click

from gemkit.cli.command import Answer, Number, SectionedCommand, answers_json, option
from gemkit.cli.options import (
    fields_option,
    plugin_option,
    training_machine_options,
    world_options,
)
from gemkit.cli.paths import PathType

EXAMPLES = """\b
Examples:
  gemkit check runs/gem_miner-conv4-digits-d0.05-s0
  gemkit check ticket.safetensors --checks shuffle,reinit:kaiming_normal,random_ticket:erk
  gemkit check runs/… --checks shuffle,linear_mode_connectivity
  gemkit check runs/… --seeds 10        # measures five more if five are saved
"""
SEEDS = 5


@click.command(cls=SectionedCommand, short_help="Compare a ticket with controls.", epilog=EXAMPLES)
@click.argument("source", metavar="RUN|TICKET", type=PathType())
@option(
    "Checks",
    "--checks",
    "names",
    metavar="NAME,…",
    default="shuffle,reinit,invert",
    help="Controls and measurements; see `gemkit parts checks` and `gemkit parts measurements`.",
)
@option(
    "Checks",
    "--seeds",
    type=click.IntRange(1),
    metavar="N",
    default=SEEDS,
    help="The number of seeds, starting with the ticket's own.",
)
@option(
    "Checks",
    "--margin",
    type=Number(0, 1, max_open=True),
    metavar="X",
    default=0.01,
    help="The smallest drop that counts: a share, or relative to the tickets' mean.",
)
@option(
    "Training",
    "--finetune-epochs",
    type=int,
    metavar="N",
    show_default="as in the run, else 30",
    help="Epochs of fine-tuning, the same for ticket and controls.",
)
@fields_option("a check named above, model, dataset or finetune")
@world_options(None, None)
@training_machine_options
@option(
    "Output",
    "--out",
    type=PathType(file_okay=False),
    metavar="DIR",
    show_default="beside the ticket",
    help="The folder for checks.json and the picture.",
)
@option("Output", "--force", is_flag=True, help="Replace saved checks that have other settings.")
@answers_json
@plugin_option
def check(**options: Any) -> Answer:  # noqa: ANN401
    """Compare a ticket with controls that a method with real insight should beat.

    For every seed a ticket is searched as the given one was, and fine-tuned by the same plan as
    its controls. Measurements describe the
    ticket of every seed in numbers. Results that are already in checks.json are not measured again.
    """
    from gemkit.cli.checking import start

    return start(**options)
