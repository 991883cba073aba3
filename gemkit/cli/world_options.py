"""Options that say which network, on which images."""

from pathlib import Path

import click

from gemkit.cli.sections import Decorator, bundle, option

TRAIN_ON = ("train", "full")
NORMS = ("affine", "plain")


def world_options(model: str | None, dataset: str | None) -> Decorator:
    """Define the options that say which network and which images; None means the ticket's own."""
    as_found = "the ticket's"
    return bundle(
        "world",
        {
            "model": option(
                "Network and data",
                "--model",
                metavar="NAME",
                default=model,
                show_default=True if model else as_found,
                help="Network; see `gemkit parts models`, or package.module:function for your own.",
            ),
            "dataset": option(
                "Network and data",
                "--dataset",
                metavar="NAME",
                default=dataset,
                show_default=True if dataset else as_found,
                help="Data set; see `gemkit parts datasets`.",
            ),
            "data_dir": data_dir_option("data"),
            "train_on": option(
                "Network and data",
                "--train-on",
                type=click.Choice(TRAIN_ON),
                show_default="train" if dataset else as_found,
                help="Without the validation images, or for a final run with them (full).",
            ),
            "download": download_option,
        },
    )


def data_dir_option(default: str) -> Decorator:
    """Define `--data-dir`; `default` says what holds where it is not given."""
    return option(
        "Network and data",
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        envvar="GEMKIT_DATA",
        show_envvar=True,
        show_default=default,
        help="Where data sets are kept.",
    )


download_option = option(
    "Network and data",
    "--download",
    is_flag=True,
    help="Fetch the data set into --data-dir first, unless it is there.",
)
network_options = bundle(
    "network",
    {
        "strip_bias": option(
            "Network and data",
            "--strip-bias",
            is_flag=True,
            help="Build the network without biases.",
        ),
        "bn": option(
            "Network and data",
            "--bn",
            type=click.Choice(NORMS),
            show_default="the network's",
            help="Batch norm with or without learned scale and shift.",
        ),
    },
)
