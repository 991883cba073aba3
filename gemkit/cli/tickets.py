"""`gemkit finetune`, `eval` and `ticket`: what can be done with a ticket file."""

from typing import Any

import click

from gemkit.cli.answers import Answer, answers_json
from gemkit.cli.machine_options import measuring_machine_options, training_machine_options
from gemkit.cli.output_options import beside_options
from gemkit.cli.recipe_options import fields_option, plugin_option
from gemkit.cli.screen import echo
from gemkit.cli.sections import SectionedCommand, bundle, option
from gemkit.cli.ticket_argument import FOUND, TRAINED, TicketPath, ticket_argument
from gemkit.cli.training_options import phase_options, seed_option
from gemkit.cli.world_options import world_options

training_options = bundle("training", phase_options("fine-tuning", "by optimizer"))


@click.command(cls=SectionedCommand, short_help="Train a ticket from its starting weights.")
@ticket_argument(FOUND)
@world_options(None, None)
@training_options
@seed_option(None)
@fields_option("model, dataset or finetune")
@training_machine_options
@beside_options("finetuned", "the ticket with trained weights")
@answers_json
@plugin_option
def finetune(**options: Any) -> Answer:  # noqa: ANN401
    """Train the weights of a TICKET from where they start, and measure before and after.

    Network and data are rebuilt from what the ticket says about itself. With the ticket's own
    seed, this repeats the fine-tuning of the run that found it. Of a RUN it takes what its search
    found.
    """
    from gemkit.cli.retraining import train

    return train(**options)


@click.command("eval", cls=SectionedCommand, short_help="Measure a ticket, no training.")
@ticket_argument(TRAINED, FOUND)
@world_options(None, None)
@fields_option("model or dataset")
@option(
    "Network and data",
    "--split",
    type=click.Choice(["test", "validation", "train"]),
    default="test",
    help="Which images to measure on.",
)
@measuring_machine_options
@answers_json
@plugin_option
def evaluate(**options: Any) -> Answer:  # noqa: ANN401
    """Measure the accuracy of a TICKET as it is, without training.

    Of a RUN it takes the fine-tuned ticket, or what its search found as long as there is none.
    """
    from gemkit.cli.retraining import measure

    return measure(**options)


@click.group()
def ticket() -> None:
    """Look into ticket files."""


@ticket.command("show", cls=SectionedCommand)
@ticket_argument(FOUND)
@answers_json
def show_ticket(file: TicketPath) -> Answer:
    """Show what a TICKET keeps of every layer, and where it comes from.

    Of a RUN it takes what its search found.
    """
    from gemkit.report.tickets import ticket_data, ticket_text

    loaded = file.load()
    return Answer(ticket_data(loaded), ticket_text(loaded))


@ticket.command("verify", cls=SectionedCommand)
@ticket_argument(FOUND)
def verify_ticket(file: TicketPath) -> None:
    """Check that a TICKET file is undamaged, and that it asks for nothing out of bounds.

    Its recipe, data set and network have to be ones that gemkit can make, and the weights have to
    fit the network. Nothing is trained, and nothing is fetched. Of a RUN it takes what its search
    found.
    """
    from gemkit.cli.verifying import verify

    echo(verify(file))
