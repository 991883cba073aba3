"""`gemkit ratios`: layer densities for random tickets, copied, searched or learned."""

from typing import Any

import click

from gemkit.cli.answers import Answer, answers_json
from gemkit.cli.machine_options import searching_machine_options
from gemkit.cli.numbers import Number
from gemkit.cli.recipe_options import fields_option, plugin_option, recipe_source, role_options
from gemkit.cli.sections import Decorator, Function, SectionedCommand, bundle, given, option
from gemkit.cli.ticket_argument import FOUND, TicketPath, ticket_argument
from gemkit.cli.training_options import density_option, phase_options, seed_option
from gemkit.cli.world_options import network_options, world_options

RULES = ("resnet", "vgg")
TRIAL_EPOCHS = 10


@click.group()
def ratios() -> None:
    """Find densities for the layers of random tickets.

    Every command prints a recipe for `gemkit run --recipe`, and can start from one.
    """


@ratios.command("copy", cls=SectionedCommand, short_help="Take those of a ticket.")
@ticket_argument(FOUND)
@option(
    "Parts",
    "--ends",
    type=click.Choice(RULES),
    help="Copy the first and last layer alone, at this Smart Ratio rule's densities between them.",
)
@answers_json
def copy_ratios(file: TicketPath, ends: str | None) -> Answer:
    """Give random tickets the layer densities of a TICKET, or of what the search of a RUN found.

    With --ends, the layers in between are those of Smart Ratio at the ticket's density, so that
    the density of the whole is what comes of it.
    """
    from gemkit.cli.ratio_making import copy

    return copy(file, ends)


def _ratio_options(what: str, lr: str, epochs: int, kinds: str) -> Decorator:
    """Define what searching and learning have in common: where to start, and how to train."""
    common: list[Decorator] = [
        recipe_source("smart_ratio"),
        role_options,
        fields_option(f"a role above, model, dataset or {kinds}; recipe fields have none"),
        world_options("conv4", "digits"),
        network_options,
        bundle("training", {"density": density_option, **phase_options(what, lr, epochs)}),
        seed_option(0),
        searching_machine_options,
        answers_json,
        plugin_option,
    ]

    def decorate(command: Function) -> Function:
        for define in reversed(common):
            command = define(command)
        return command

    return decorate


@ratios.command("search", cls=SectionedCommand, short_help="Try others around a recipe's.")
@_ratio_options("each trial", "by optimizer", TRIAL_EPOCHS, "finetune")
@option(
    "Search",
    "--step",
    type=Number(0, min_open=True),
    metavar="X",
    default=0.3,
    help="A group of layers is made denser, or sparser, by 1 + X.",
)
@option(
    "Search",
    "--rounds",
    type=click.IntRange(1),
    metavar="N",
    default=1,
    help="Go on from the best this often, with up to 8 trials each time.",
)
@option(
    "Search",
    "--repeats",
    type=click.IntRange(1),
    metavar="N",
    default=1,
    help="Random tickets per trial, whose accuracies are averaged.",
)
def search_ratios(**options: Any) -> Answer:  # noqa: ANN401
    """Try layer densities around those of a recipe, and keep the best.

    Each trial trains random tickets and measures them on validation images. The groups of layers
    that change are both ends, and the early, middle and late ones between them.
    """
    from gemkit.cli.ratio_making import search

    return search(density_given=given("density"), **options)


@ratios.command("learn", cls=SectionedCommand, short_help="Learn them by gradient descent.")
@_ratio_options("learning", "by length", 30, "search")
def learn_ratios(**options: Any) -> Answer:  # noqa: ANN401
    """Learn layer densities by gradient descent, starting from those of a recipe.

    Weights stand still; in every step each is drawn with its layer's density as probability.
    Nothing holds the density of the whole where it started.
    """
    from gemkit.cli.ratio_making import learn

    return learn(density_given=given("density"), **options)
