"""Options that say where files go, and how often they are written."""

from pathlib import Path

import click

from gemkit.cli.numbers import Number
from gemkit.cli.sections import Decorator, Function, option

CHECKPOINT_MINUTES = 10.0


def checkpoint_option(default: float | None) -> Decorator:
    """Define `--checkpoint-minutes`; None means the run's own."""
    return option(
        "Output",
        "--checkpoint-minutes",
        type=Number(0),
        metavar="X",
        default=default,
        show_default=True if default is not None else "the run's",
        help="How long to go on at most without saving; epochs' ends are saved as well.",
    )


def beside_options(suffix: str, what: str) -> Decorator:
    """Define `--out` and `--force`, for what is made of a ticket and goes beside it."""

    def decorate(command: Function) -> Function:
        force = option("Output", "--force", is_flag=True, help="Overwrite what is there.")
        out = option(
            "Output",
            "--out",
            type=click.Path(path_type=Path),
            metavar="FILE|DIR",
            show_default=f"NAME-{suffix}.safetensors beside it",
            help=f"Where {what} goes.",
        )
        return out(force(command))

    return decorate
