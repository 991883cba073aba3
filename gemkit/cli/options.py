"""Options that several commands share."""

from functools import wraps
from pathlib import Path
from typing import Any

import click

from gemkit.cli.command import Decorator, Function, Number, bundle, chain, given, option
from gemkit.cli.paths import PathType
from gemkit.core.limits import MAX_SEED

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("32", "bf16", "fp16", "64")
TRAIN_ON = ("train", "full")
NORMS = ("affine", "plain")
POLICIES = ("error", "warn", "keep-one")
ON_NAN = ("stop", "skip")
ON_NO_SIGNAL = ("error", "warn")
EPOCHS = 30
BATCH_SIZE = 64
CHECKPOINT_MINUTES = 10.0
ROLES = {
    "scores": "The importance of every weight.",
    "rounding": "How learned scores become a mask.",
    "allocation": "How layers share the budget.",
    "schedule": "When the density falls, and how far.",
    "regularizer": "A penalty on learned scores.",
    "init": "Initial values of the weights.",
    "structure": "Which weights are pruned together.",
    "grow": "Which pruned weights return.",
    "objective": "What is minimized: in all phases, or in the search alone if it has to be.",
}


def integer_option(
    section: str,
    name: str,
    text: str,
    *,
    least: int | None = None,
    most: int | None = None,
    **settings: Any,  # noqa: ANN401 - click's own
) -> Decorator:
    """Define an option that takes an integer within bounds; the help calls it N."""
    bounds = click.IntRange(least, most) if least is not None else int
    return option(section, name, type=bounds, metavar="N", help=text, **settings)


# --- parts ---

preset_option = option(
    "Parts",
    "--preset",
    metavar="NAME",
    help="Take all options that are not given from a preset; see `gemkit presets`.",
)
role_options = bundle(
    "roles",
    {role: option("Parts", f"--{role}", metavar="NAME", help=text) for role, text in ROLES.items()},
)
plugin_option = option(
    "Other",
    "--plugin",
    "plugins",
    type=PathType(dir_okay=False),
    metavar="FILE",
    multiple=True,
    help="Load a Python file as a plugin (repeatable).",
)


def recipe_source(pruner: str) -> Decorator:
    """Define `--pruner`, with this default, and `--recipe`; both together are refused."""

    def decorate(command: Function) -> Function:
        @option(
            "Parts",
            "--pruner",
            metavar="NAME",
            default=pruner,
            help="Recipe to follow; see `gemkit parts pruners`.",
        )
        @option(
            "Parts",
            "--recipe",
            "recipe_file",
            metavar="FILE",
            type=PathType(dir_okay=False),
            help="Follow the recipe in a TOML file instead.",
        )
        @wraps(command)
        def checked(*, recipe_file: Path | None, **values: Any) -> Any:  # noqa: ANN401
            if recipe_file is not None and given("pruner"):
                raise click.UsageError(
                    "--recipe and --pruner both say which recipe to follow; give one."
                )
            return command(recipe_file=recipe_file, **values)

        return checked

    return decorate


def fields_option(kinds: str) -> Decorator:
    """Define `-o`; `kinds` names the things whose fields it sets."""
    return option(
        "Parts",
        "-o",
        "--option",
        "fields",
        metavar="KIND.FIELD=VALUE",
        multiple=True,
        help=f"Set one field (repeatable). KIND is {kinds}. VALUE is read as TOML, else as text. "
        "It overrides every other option.",
    )


# --- network and data ---

_NETWORK = "Network and data"
download_option = option(
    _NETWORK,
    "--download",
    is_flag=True,
    help="Fetch the data set into --data-dir first, if it is missing.",
)
network_options = bundle(
    "network",
    {
        "strip_bias": option(
            _NETWORK, "--strip-bias", is_flag=True, help="Build the network without biases."
        ),
        "bn": option(
            _NETWORK,
            "--bn",
            type=click.Choice(NORMS),
            show_default="the network's",
            help="Batch norm with or without learned scale and shift.",
        ),
    },
)


def data_dir_option(default: str) -> Decorator:
    """Define `--data-dir`; `default` is the default that the help shows."""
    return option(
        _NETWORK,
        "--data-dir",
        type=PathType(file_okay=False),
        metavar="DIR",
        envvar="GEMKIT_DATA",
        show_envvar=True,
        show_default=default,
        help="Where data sets are kept.",
    )


def world_options(model: str | None, dataset: str | None) -> Decorator:
    """Define the options that name the network and the images; None means the ticket's own."""
    own = "the ticket's"
    options = {
        "model": option(
            _NETWORK,
            "--model",
            metavar="NAME",
            default=model,
            show_default=True if model else own,
            help="Network; see `gemkit parts models`, or package.module:function for your own.",
        ),
        "dataset": option(
            _NETWORK,
            "--dataset",
            metavar="NAME",
            default=dataset,
            show_default=True if dataset else own,
            help="Data set; see `gemkit parts datasets`.",
        ),
        "data_dir": data_dir_option("data"),
        "train_on": option(
            _NETWORK,
            "--train-on",
            type=click.Choice(TRAIN_ON),
            show_default="train" if dataset else own,
            help="Train without the validation images, or with them (full), for a final run.",
        ),
        "download": download_option,
    }
    return bundle("world", options)


# --- training ---


def lr_option(name: str, text: str, default: str) -> Decorator:
    """Define a learning rate; `default` is the text for the default in the help."""
    return option("Training", name, type=float, metavar="X", show_default=default, help=text)


def phase_options(what: str, lr: str, epochs: int = EPOCHS) -> dict[str, Decorator]:
    """Define how long and how fast one phase trains; `lr` as in `lr_option`."""
    return {
        "epochs": integer_option("Training", "--epochs", f"Epochs of {what}.", default=epochs),
        "batch_size": integer_option(
            "Training", "--batch-size", "Images per step.", default=BATCH_SIZE
        ),
        "lr": lr_option("--lr", "Peak learning rate.", lr),
    }


def seed_option(default: int | None) -> Decorator:
    """Define `--seed`; None means the ticket's own."""
    return integer_option(
        "Training",
        "--seed",
        "Seed of weights, scores and data order; equal seeds give equal tickets on a CPU.",
        least=0,
        most=MAX_SEED,
        default=default,
        show_default=True if default is not None else "the ticket's",
    )


# --- machine ---

_MACHINE = {
    "device": option(
        "Machine",
        "--device",
        type=click.Choice(DEVICES),
        default="auto",
        help="Where to compute; auto uses an accelerator if there is one.",
    ),
    "devices": integer_option(
        "Machine", "--devices", "Number of devices that share every batch.", default=1
    ),
    "precision": option(
        "Machine",
        "--precision",
        type=click.Choice(PRECISIONS),
        default="32",
        help="Number format; bf16 is mixed precision.",
    ),
}
_COMPILE = option(
    "Machine", "--compile", is_flag=True, help="Compile network and update with torch.compile."
)
_COMPACT = option(
    "Machine",
    "--compact",
    is_flag=True,
    help="Fine-tune without the channels that the ticket does not use: the same training, faster.",
)
_LEAN = option("Machine", "--lean", is_flag=True, hidden=True, help="Removed; refused.")
_TRAINING = {**_MACHINE, "compile": _COMPILE, "compact": _COMPACT}
measuring_machine_options = bundle("machine", _MACHINE)
searching_machine_options = bundle("machine", {**_MACHINE, "compile": _COMPILE})
training_machine_options = bundle("machine", _TRAINING)
_THREADS = integer_option(
    "Machine",
    "--threads",
    "Threads of the run on the CPU; another number changes its last bits.",
    least=1,
    most=4096,
    show_default="torch's own",
)
running_machine_options = bundle("machine", {**_TRAINING, "threads": _THREADS, "lean": _LEAN})


# --- output ---


def checkpoint_option(default: float | None) -> Decorator:
    """Define `--checkpoint-minutes`; None means the run's own."""
    return option(
        "Output",
        "--checkpoint-minutes",
        type=Number(0),
        metavar="X",
        default=default,
        show_default=True if default is not None else "the run's",
        help="Longest time between checkpoints; the ends of epochs are saved as well.",
    )


def beside_options(suffix: str, what: str) -> Decorator:
    """Define `--out` and `--force`, for a file that is made from a ticket and saved beside it."""
    out = option(
        "Output",
        "--out",
        type=PathType(),
        metavar="FILE|DIR",
        show_default=f"NAME-{suffix}.safetensors beside it",
        help=f"Where {what} goes.",
    )
    return chain(
        [out, option("Output", "--force", is_flag=True, help="Overwrite an existing file.")]
    )
