"""`gemkit run` and `gemkit resume`: search, measure, fine-tune, measure again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemkit.cli.check import SEEDS
from gemkit.cli.command import Answer, SectionedCommand, answers_json, bundle, echo, given, option
from gemkit.cli.density import density_option
from gemkit.cli.options import (
    BATCH_SIZE,
    CHECKPOINT_MINUTES,
    EPOCHS,
    ON_NAN,
    ON_NO_SIGNAL,
    POLICIES,
    checkpoint_option,
    data_dir_option,
    fields_option,
    integer_option,
    lr_option,
    network_options,
    plugin_option,
    preset_option,
    recipe_source,
    role_options,
    running_machine_options,
    seed_option,
    world_options,
)
from gemkit.cli.paths import PathType
from gemkit.cli.task import metric_option, replaced_objective, with_objective
from gemkit.core.text import number_of

if TYPE_CHECKING:
    from gemkit.parts.objective import Objective
    from gemkit.runs.config import RunSettings
    from gemkit.runs.resolved import ResolvedRun
    from gemkit.runs.result import RunResult

EXAMPLES = """\b
Examples:
  gemkit run
  gemkit run --pruner edge_popup --density 0.02 --seed 1
  gemkit run --rounding bernoulli -o regularizer.weight=3e-4 -o search.optimizer=adam
  gemkit show gem_miner > mine.toml; gemkit run --recipe mine.toml
  gemkit run --check shuffle --check reinit
  gemkit resume runs/…                  # resume an interrupted run
  gemkit run --preset demo/gem_miner --density 0.02

Exit codes: 0 done; 1 a fault in a plugin, or a bug; 2 an error to correct; 3 a collapse;
129, 130 and 143 stopped by a signal, and saved.
"""

_SETTINGS = ("observers", "checks", "check_seeds", "checkpoint_minutes")
training_options = bundle(
    "training",
    {
        "density": density_option,
        "epochs": integer_option(
            "Training",
            "--epochs",
            "Epochs of the search, or of each round if the pruner rewinds and sets none.",
            default=EPOCHS,
        ),
        "finetune_epochs": integer_option(
            "Training", "--finetune-epochs", "Epochs of fine-tuning.", show_default="as --epochs"
        ),
        "batch_size": integer_option(
            "Training", "--batch-size", "Images per step, in both phases.", default=BATCH_SIZE
        ),
        "lr": lr_option(
            "--lr", "Peak learning rate of the search.", "by scores, optimizer and length"
        ),
        "finetune_lr": lr_option(
            "--finetune-lr", "Peak learning rate of fine-tuning.", "by optimizer"
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


@click.command(cls=SectionedCommand, epilog=EXAMPLES)
@preset_option
@recipe_source("gem_miner")
@role_options
@fields_option(
    "a role above, rewind, prunable, model, dataset, search or finetune; recipe fields have none"
)
@world_options("conv4", "digits")
@network_options
@training_options
@metric_option
@seed_option(0)
@option(
    "Training",
    "--on-collapse",
    type=click.Choice(POLICIES),
    default="error",
    help="When a layer or every path is lost: stop, warn, or keep the layer's best weight.",
)
@option(
    "Checks",
    "--check",
    "checks",
    metavar="NAME",
    multiple=True,
    help="Then make this check or measurement (repeatable); see `gemkit parts checks`.",
)
@integer_option(
    "Checks",
    "--check-seeds",
    "Seeds to compare over, this run's first.",
    least=1,
    default=SEEDS,
)
@running_machine_options
@option(
    "Output",
    "--out",
    type=PathType(),
    metavar="DIR",
    show_default="runs/PRUNER-MODEL-DATASET-dDENSITY-sSEED",
    help="Folder for the run's files: new, empty, or with this same run, which is then resumed.",
)
@option(
    "Output",
    "--new",
    is_flag=True,
    help="Run even if this same run is finished in `runs`; otherwise its result is printed.",
)
@checkpoint_option(CHECKPOINT_MINUTES)
@answers_json
@option(
    "Output",
    "--observer",
    "observers",
    metavar="NAME",
    multiple=True,
    help="Add an observer (repeatable); see `gemkit parts observers`.",
)
@plugin_option
def run(
    preset: str | None,
    out: Path | None,
    new: bool,
    plugins: Sequence[Path],
    **options: Any,  # noqa: ANN401 - all the other options
) -> Answer:
    """Search for a ticket, measure it, fine-tune it and measure it again.

    Every part of a pruner can be replaced, and every field of a part can be set. The result, the
    tickets and everything needed to repeat the run are written to one new folder.
    """
    from gemkit.cli.configure import config_of, settings_of, sorted_options, with_preset
    from gemkit.cli.reporting import Report
    from gemkit.plugins.loader import load_plugins
    from gemkit.runs.run import run
    from gemkit.runs.specs import model_argument

    registry = load_plugins(files=plugins)
    world, others = options["world"], {name: options.pop(name) for name in _SETTINGS}
    chosen = sorted_options(options) | {"settings": settings_of(world, plugins, **others)}
    if preset is not None:
        chosen = with_preset(registry.preset(preset).thing, chosen, given)
    chosen = with_objective(registry, chosen, typed=given("objective"))
    config = config_of(registry, **chosen)
    training = options["training"]
    ignored = partial(
        note_ignored,
        density=training["density"] if given("density") else None,
        epochs=training["epochs"] if given("epochs") else None,
        lr=training["lr"],
        objective=replaced_objective(registry, chosen),
    )
    report = Report(ignored)
    result = run(
        config,
        out,
        model=model_argument(config.model),
        progress=report,
        registry=registry,
        download=world["download"],
        new=new or bool(others["observers"]),  # they would hear nothing of an earlier run
    )
    return answer_of(result, report.settings)


@click.command(cls=SectionedCommand)
@click.argument("folder", metavar="RUN", type=PathType())
@option(
    "Network and data",
    "--model",
    metavar="NAME",
    show_default="the run's",
    help="Required for a network of your own, and for one that loads weights.",
)
@data_dir_option("the run's")
@checkpoint_option(None)
@answers_json
@plugin_option
def resume(folder: Path, **options: Any) -> Answer:  # noqa: ANN401
    """Resume an interrupted RUN from its last checkpoint.

    On a CPU it ends with the same ticket, metrics and weights, to the bit, as an uninterrupted run.
    Plugin files, networks of your own and networks that start from weights of a library or a file
    have to be given again: a run's folder alone runs no code and fetches nothing.
    """
    from gemkit.cli.reporting import Report
    from gemkit.runs.run import resume

    report = Report()
    result = resume(folder, progress=report, **options)
    return answer_of(result, report.settings)


def answer_of(result: RunResult, settings: RunSettings) -> Answer:
    """Return the result of a run as an answer."""
    from gemkit.cli.reporting import report_text
    from gemkit.report.results import result_text

    data = result.to_data()
    text = result_text(data, next_command(data, settings))
    if result.checks is not None:
        text = f"{text}\n\n{report_text(result.checks)}"
    return Answer(data, text)


def note_ignored(
    resolved: ResolvedRun,
    *,
    density: float | None,
    epochs: int | None = None,
    lr: float | None = None,
    objective: Objective | None = None,
) -> None:
    """Print which options the pruner overrides or ignores, and which `objective` of it is lost."""
    from gemkit.cli.reporting import part_text
    from gemkit.parts.fit import needs_training

    pruner, rounds = resolved.recipe.pruner, resolved.recipe.schedule.round_epochs
    if density is not None and density != resolved.density:
        echo(
            f"note: pruner '{pruner}' insists on density {resolved.density:g}; "
            f"the given density {density:g} is ignored",
            err=True,
        )
    if epochs is not None and rounds is not None and rounds != epochs:
        echo(
            f"note: pruner '{pruner}' trains rounds of {number_of(rounds, 'epoch')} "
            f"(schedule.every); --epochs {epochs} does not change that",
            err=True,
        )
    if lr is not None and not needs_training(resolved.recipe):
        echo(
            f"note: the search of pruner '{pruner}' trains nothing, so --lr {lr:g} is ignored; "
            "--finetune-lr sets that of fine-tuning",
            err=True,
        )
    if objective not in (None, resolved.task.objective):
        echo(
            f"note: --objective replaces what the search of pruner '{pruner}' minimizes, "
            f"{part_text(objective)}",
            err=True,
        )


def next_command(data: Mapping[str, Any], settings: RunSettings) -> str:
    """Return a command to try next: fine-tune the ticket with another order of the data."""
    words = ["gemkit", "finetune", data["ticket"], "--seed", str(data["seed"] + 1)]
    words += [word for file in settings.plugins for word in ("--plugin", file)]
    words += ["--data-dir", settings.data_dir] if settings.data_dir else []
    words += ["--model", data["model"]["custom"]] if "custom" in data["model"] else []
    return shlex.join(words)
