"""Options that say where to compute, and in which way."""

import click

from gemkit.cli.sections import bundle, option

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("32", "bf16", "64")

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
    "Machine", "--compile", is_flag=True, help="Compile network and update with torch.compile."
)
_COMPACT = option(
    "Machine",
    "--compact",
    is_flag=True,
    help="Fine-tune without the channels a ticket has no use for: the same training, faster.",
)
_LEAN = option("Machine", "--lean", is_flag=True, hidden=True, help="Removed; refused.")
_TRAINING = {**_MACHINE, "compile": _COMPILE, "compact": _COMPACT}
measuring_machine_options = bundle("machine", _MACHINE)
searching_machine_options = bundle("machine", {**_MACHINE, "compile": _COMPILE})
training_machine_options = bundle("machine", _TRAINING)
running_machine_options = bundle("machine", {**_TRAINING, "lean": _LEAN})
