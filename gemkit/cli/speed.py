"""`gemkit compact` and `gemkit bench`: a ticket made smaller, and what that gains."""

from typing import Any

import click

from gemkit.cli.answers import Answer, answers_json
from gemkit.cli.output_options import beside_options
from gemkit.cli.recipe_options import fields_option, plugin_option
from gemkit.cli.sections import SectionedCommand, option
from gemkit.cli.ticket_argument import FOUND, TRAINED, ticket_argument
from gemkit.cli.world_options import world_options


@click.command(cls=SectionedCommand, short_help="Remove what a ticket has no use for.")
@ticket_argument(TRAINED, FOUND)
@world_options(None, None)
@fields_option("model or dataset")
@beside_options("compact", "the smaller network")
@answers_json
@plugin_option
def compact(**options: Any) -> Answer:  # noqa: ANN401
    """Take the channels out of a TICKET's network that nothing reaches, or that reach nothing.

    What remains is an ordinary, smaller network with the same outputs. It is saved as safetensors;
    `gemkit.compaction.load_compact(file, model)` puts it into a model. Of a RUN it takes the
    fine-tuned ticket, or what its search found as long as there is none.
    """
    from gemkit.cli.compacting import make

    return make(**options)


@click.command(cls=SectionedCommand, short_help="Time a ticket: dense, masked, compact, sparse.")
@ticket_argument(TRAINED, FOUND)
@world_options(None, None)
@fields_option("model or dataset")
@option(
    "Machine",
    "--batch",
    type=click.IntRange(1),
    metavar="N",
    default=32,
    help="Images at a time.",
)
@option(
    "Machine",
    "--threads",
    type=click.IntRange(1),
    metavar="N",
    show_default="as torch chooses",
    help="Threads to compute with.",
)
@option(
    "Machine",
    "--turns",
    type=click.IntRange(1),
    metavar="N",
    default=15,
    help="How often each contender is timed.",
)
@answers_json
@plugin_option
def bench(**options: Any) -> Answer:  # noqa: ANN401
    """Time the network of a TICKET on this machine's processor, in four forms.

    Dense has all weights, masked has zeros in it, compact is without what the ticket has no use
    for, and sparse is compact with linear layers that skip zeros, where they prove faster. All of
    them take turns, so that a busy machine slows them alike. Of a RUN it takes the fine-tuned
    ticket, or what its search found as long as there is none.
    """
    from gemkit.cli.timing import measure

    return measure(**options)
