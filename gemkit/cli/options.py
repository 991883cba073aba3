"""Options that several commands share, each defined once.

Choices and defaults are written out here, because reading them off the classes they belong to
would import torch for `--help`; a test holds the two together.
"""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("32", "bf16", "64")
NORMS = ("affine", "plain")
POLICIES = ("error", "warn", "keep-one")
ON_NAN = ("stop", "skip")
TRAIN_ON = ("train", "full")
ROLES = {
    "scores": "How important every weight is.",
    "rounding": "How learned scores become a mask.",
    "allocation": "How layers share the budget.",
    "schedule": "When the density falls.",
    "regularizer": "What pulls on learned scores.",
    "init": "Where weights begin.",
}
EPOCHS = 30
BATCH_SIZE = 64
CHECKPOINT_MINUTES = 10.0
LARGEST_SEED = 2**32 - 1


class Answer(NamedTuple):
    """What a command found out: data for machines, text for people, and the exit code."""

    data: Mapping[str, Any]
    text: str
    code: int = 0


class SectionedOption(click.Option):
    """An option that stands under a heading in the help of its command."""

    def __init__(self, *args: Any, section: str, **settings: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help groups its options under headings, in the order of their definition."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list for every heading."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        sections: dict[str, list[tuple[str, str]]] = {}
        for one in options:
            record = one.get_help_record(ctx)
            if record:
                sections.setdefault(getattr(one, "section", "Other"), []).append(record)
        sections["Other"] = sections.pop("Other")  # last; --help is always there
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def option(section: str, *names: str, **settings: Any) -> Decorator:  # noqa: ANN401
    """Define an option under a heading; its default is shown."""
    settings.setdefault("show_default", True)
    return click.option(*names, cls=SectionedOption, section=section, **settings)


def bundle(name: str, options: Mapping[str, Decorator]) -> Decorator:
    """Give a command options, whose values it receives as one dictionary called `name`."""

    def decorate(command: Function) -> Function:
        @wraps(command)
        def unbundled(**values: Any) -> Any:  # noqa: ANN401
            own = {key: values.pop(key) for key in options}
            return command(**values, **{name: own})

        defined: Function = unbundled
        for define in reversed(list(options.values())):  # click lists the last applied first
            defined = define(defined)
        return defined

    return decorate


def answers_json(command: Function) -> Function:
    """Add `--json` to a command that returns an Answer.

    With it, stdout carries that one object and nothing else, whatever a plugin may print.
    """

    @option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
    @wraps(command)
    def answered(*, as_json: bool, **values: Any) -> None:  # noqa: ANN401
        if as_json:
            with redirect_stdout(sys.stderr):
                answer = command(**values)
            click.echo(json.dumps(answer.data, allow_nan=False))
        else:
            answer = command(**values)
            click.echo(answer.text)
        if answer.code:
            raise click.exceptions.Exit(answer.code)

    return answered


def given(name: str) -> bool:
    """Tell whether the user gave an option of the running command, rather than its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


def fields_option(kinds: str) -> Decorator:
    """Define `-o`; `kinds` says whose fields it sets."""
    return option(
        "Parts",
        "-o",
        "--option",
        "fields",
        metavar="KIND.FIELD=VALUE",
        multiple=True,
        help=f"Set one field (repeatable). KIND is {kinds}. VALUE is read as TOML, else as text. "
        "It wins over every other option.",
    )


def role_option(role: str, what: str) -> Decorator:
    """Define the option that puts a part into a role, instead of the recipe's own."""
    return option("Parts", f"--{role}", metavar="NAME", help=what)


role_options = bundle("roles", {role: role_option(role, what) for role, what in ROLES.items()})


preset_option = option(
    "Parts",
    "--preset",
    metavar="NAME",
    help="Take everything that is not given here from a preset; see `gemkit presets`.",
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
            type=click.Path(dir_okay=False, path_type=Path),
            help="Follow the recipe in a TOML file instead.",
        )
        @wraps(command)
        def followed(*, recipe_file: Path | None, **values: Any) -> Any:  # noqa: ANN401
            if recipe_file is not None and given("pruner"):
                raise click.UsageError(
                    "--recipe and --pruner both say which recipe to follow; give one."
                )
            return command(recipe_file=recipe_file, **values)

        return followed

    return decorate


density_option = option(
    "Training",
    "--density",
    type=click.FloatRange(0, 1, min_open=True),
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


plugin_option = option(
    "Other",
    "--plugin",
    "plugins",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    multiple=True,
    help="Load a Python file as a plugin (repeatable).",
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


def checkpoint_option(default: float | None) -> Decorator:
    """Define `--checkpoint-minutes`; None means the run's own."""
    return option(
        "Output",
        "--checkpoint-minutes",
        type=click.FloatRange(0),
        metavar="X",
        default=default,
        show_default=True if default is not None else "the run's",
        help="How long to go on at most without saving; epochs' ends are saved as well.",
    )


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

_MACHINE = {
    "device": option(
        "Machine",
        "--device",
        type=click.Choice(DEVICES),
        default="auto",
        help="Where to compute; auto takes the accelerator where there is one.",
    ),
    "devices": option(
        "Machine",
        "--devices",
        type=int,
        metavar="N",
        default=1,
        help="How many share every batch.",
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
    "Machine", "--compile", is_flag=True, help="Compile the network with torch.compile."
)
_COMPACT = option(
    "Machine",
    "--compact",
    is_flag=True,
    help="Fine-tune without the channels a ticket has no use for: the same training, faster.",
)
measuring_machine_options = bundle("machine", _MACHINE)
searching_machine_options = bundle("machine", {**_MACHINE, "compile": _COMPILE})
training_machine_options = bundle("machine", {**_MACHINE, "compile": _COMPILE, "compact": _COMPACT})


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
