"""`gemkit run`: search, measure, fine-tune, measure again."""

from pathlib import Path
from typing import Any

import click

from gemkit.cli.answers import Answer, answers_json
from gemkit.cli.check import SEEDS
from gemkit.cli.machine_options import running_machine_options
from gemkit.cli.output_options import CHECKPOINT_MINUTES, checkpoint_option
from gemkit.cli.recipe_options import (
    fields_option,
    plugin_option,
    preset_option,
    recipe_source,
    role_options,
)
from gemkit.cli.sections import SectionedCommand, bundle, given, option
from gemkit.cli.training_options import (
    BATCH_SIZE,
    EPOCHS,
    ON_NAN,
    ON_NO_SIGNAL,
    POLICIES,
    density_option,
    seed_option,
)
from gemkit.cli.world_options import network_options, world_options

EXAMPLES = """\b
Examples:
  gemkit run
  gemkit run --pruner edge_popup --density 0.02 --seed 1
  gemkit run --rounding bernoulli -o regularizer.weight=3e-4 -o search.optimizer=adam
  gemkit show gem_miner > mine.toml; gemkit run --recipe mine.toml
  gemkit run --check shuffle --check reinit
  gemkit resume runs/…                  # go on where it was interrupted
  gemkit run --preset demo/gem_miner --density 0.02
"""

training_options = bundle(
    "training",
    {
        "density": density_option,
        "epochs": option(
            "Training",
            "--epochs",
            type=int,
            metavar="N",
            default=EPOCHS,
            help="Epochs of the search; of each round, where a pruner rewinds and sets no other.",
        ),
        "finetune_epochs": option(
            "Training",
            "--finetune-epochs",
            type=int,
            metavar="N",
            show_default="as --epochs",
            help="Epochs of fine-tuning.",
        ),
        "batch_size": option(
            "Training",
            "--batch-size",
            type=int,
            metavar="N",
            default=BATCH_SIZE,
            help="Images per step, in both phases.",
        ),
        "lr": option(
            "Training",
            "--lr",
            type=float,
            metavar="X",
            show_default="by scores, optimizer and length",
            help="Peak learning rate of the search.",
        ),
        "finetune_lr": option(
            "Training",
            "--finetune-lr",
            type=float,
            metavar="X",
            show_default="by optimizer",
            help="Peak learning rate of fine-tuning.",
        ),
        "on_nan": option(
            "Training",
            "--on-nan",
            type=click.Choice(ON_NAN),
            default="stop",
            help="When the loss is not finite: stop, or leave that step out.",
        ),
        "on_no_signal": option(
            "Training",
            "--on-no-signal",
            type=click.Choice(ON_NO_SIGNAL),
            default="error",
            help="When no gradient reaches a layer at the start of a search: stop, or warn.",
        ),
        "allow_ties": option(
            "Training",
            "--allow-ties",
            is_flag=True,
            help="Prune layers whose weights are all equally important, by position.",
        ),
    },
)


@click.command(
    cls=SectionedCommand, short_help="Search, measure, fine-tune, measure.", epilog=EXAMPLES
)
@preset_option
@recipe_source("gem_miner")
@role_options
@fields_option("a role above, rewind, model, dataset, search or finetune; recipe fields have none")
@world_options("conv4", "digits")
@network_options
@training_options
@seed_option(0)
@option(
    "Training",
    "--on-collapse",
    type=click.Choice(POLICIES),
    default="error",
    help="When a layer or every path is lost: stop, go on, or keep its best weight.",
)
@option(
    "Checks",
    "--check",
    "checks",
    metavar="NAME",
    multiple=True,
    help="Then compare with this control (repeatable); see `gemkit parts checks`.",
)
@option(
    "Checks",
    "--check-seeds",
    type=click.IntRange(1),
    metavar="N",
    default=SEEDS,
    help="Seeds to compare over, this run's first.",
)
@running_machine_options
@option(
    "Output",
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    show_default="runs/PRUNER-MODEL-DATASET-dDENSITY-sSEED",
    help="Where the run's files go; new, empty, or with this very run, which then goes on.",
)
@checkpoint_option(CHECKPOINT_MINUTES)
@answers_json
@option(
    "Output",
    "--observer",
    "observers",
    metavar="NAME",
    multiple=True,
    help="Also tell this observer (repeatable); see `gemkit parts observers`.",
)
@plugin_option
def run(**options: Any) -> Answer:  # noqa: ANN401
    """Search for a ticket, measure it, fine-tune it and measure it again.

    The parts of a pruner can be exchanged one by one, and every field of a part can be set. The
    result, the tickets and everything needed to repeat the run go into one new directory.
    """
    from gemkit.cli.running import start

    return start(given=given, **options)
