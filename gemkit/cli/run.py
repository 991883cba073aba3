"""`gemkit run`: search, measure, fine-tune, measure again."""

from pathlib import Path
from typing import Any

import click

from gemkit.cli.options import (
    BATCH_SIZE,
    EPOCHS,
    POLICIES,
    Answer,
    SectionedCommand,
    answers_json,
    bundle,
    fields_option,
    given,
    network_options,
    option,
    plugin_option,
    role_options,
    seed_option,
    training_machine_options,
    world_options,
)

EXAMPLES = """\b
Examples:
  gemkit run
  gemkit run --pruner edge_popup --density 0.02 --seed 1
  gemkit run --rounding bernoulli -o regularizer.weight=3e-4 -o search.optimizer=adam
  gemkit show gem_miner > mine.toml; gemkit run --recipe mine.toml
"""

training_options = bundle(
    "training",
    {
        "density": option(
            "Training",
            "--density",
            type=click.FloatRange(0, 1, min_open=True),
            metavar="X",
            default=0.05,
            help="Fraction of the prunable weights to keep.",
        ),
        "epochs": option(
            "Training",
            "--epochs",
            type=int,
            metavar="N",
            default=EPOCHS,
            help="Epochs of the search; of each of its rounds, where the pruner rewinds.",
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
    },
)


@click.command(
    cls=SectionedCommand, short_help="Search, measure, fine-tune, measure.", epilog=EXAMPLES
)
@option(
    "Parts",
    "--pruner",
    metavar="NAME",
    default="gem_miner",
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
@training_machine_options
@option(
    "Output",
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    show_default="runs/PRUNER-MODEL-DATASET-dDENSITY-sSEED",
    help="Where the run's files go; must be new or empty.",
)
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
def run(recipe_file: Path | None, **options: Any) -> Answer:  # noqa: ANN401
    """Search for a ticket, measure it, fine-tune it and measure it again.

    The parts of a pruner can be exchanged one by one, and every field of a part can be set. The
    result, the tickets and everything needed to repeat the run go into one new directory.
    """
    if recipe_file is not None and given("pruner"):
        raise click.UsageError("--recipe and --pruner both say which recipe to follow; give one.")
    from gemkit.cli.running import start

    return start(
        recipe_file=recipe_file,
        density_given=given("density"),
        epochs_given=given("epochs"),
        **options,
    )
