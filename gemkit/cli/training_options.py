"""Options that say how much is kept and how long, how fast and from which seed it is trained."""

import click

from gemkit.cli.numbers import Number
from gemkit.cli.sections import Decorator, option
from gemkit.limits import LARGEST_SEED

POLICIES = ("error", "warn", "keep-one")
ON_NAN = ("stop", "skip")
ON_NO_SIGNAL = ("error", "warn")
EPOCHS = 30
BATCH_SIZE = 64

density_option = option(
    "Training",
    "--density",
    type=Number(0, 1, min_open=True),
    metavar="X",
    default=0.05,
    help="Fraction of the prunable weights to keep.",
)


def phase_options(what: str, lr: str, epochs: int = EPOCHS) -> dict[str, Decorator]:
    """Define how long and fast one phase trains; `lr` says what decides where none is given."""
    return {
        "epochs": option(
            "Training",
            "--epochs",
            type=int,
            metavar="N",
            default=epochs,
            help=f"Epochs of {what}.",
        ),
        "batch_size": option(
            "Training",
            "--batch-size",
            type=int,
            metavar="N",
            default=BATCH_SIZE,
            help="Images per step.",
        ),
        "lr": option(
            "Training",
            "--lr",
            type=float,
            metavar="X",
            show_default=lr,
            help="Peak learning rate.",
        ),
    }


def seed_option(default: int | None) -> Decorator:
    """Define `--seed`; None means the ticket's own."""
    return option(
        "Training",
        "--seed",
        type=click.IntRange(0, LARGEST_SEED),
        metavar="N",
        default=default,
        show_default=True if default is not None else "the ticket's",
        help="Draws weights, scores and data order; the same seed gives the same ticket on a CPU.",
    )
