"""The body of `gemkit run`."""

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gemkit.cli.answers import Answer
from gemkit.cli.configuring import Given, config_of, settings_of, sorted_options, with_preset
from gemkit.cli.reporting import Report, report_text
from gemkit.cli.screen import echo
from gemkit.compose import needs_training
from gemkit.plugins import load_plugins
from gemkit.report.results import result_text
from gemkit.runs.config import RunSettings
from gemkit.runs.job import Job
from gemkit.runs.result import RunResult
from gemkit.runs.run import run
from gemkit.runs.specs import title_of
from gemkit.wording import number_of

_SETTINGS = ("observers", "checks", "check_seeds", "checkpoint_minutes")


def start(
    *,
    preset: str | None,
    given: Given,
    out: Path | None,
    plugins: Sequence[Path],
    **options: Any,  # noqa: ANN401 - the rest of the command's options
) -> Answer:
    """Turn the options into a configuration, and run it."""
    registry = load_plugins(files=plugins)
    world, others = options["world"], {name: options.pop(name) for name in _SETTINGS}
    chosen = sorted_options(options) | {"settings": settings_of(world, plugins, **others)}
    if preset is not None:
        chosen = with_preset(registry.preset(preset).thing, chosen, given)
    config = config_of(registry, **chosen)
    training = options["training"]
    ignored = partial(
        say_what_is_ignored,
        density=training["density"] if given("density") else None,
        epochs=training["epochs"] if given("epochs") else None,
        lr=training["lr"],
    )
    report = Report(ignored)
    result = run(
        config,
        out,
        model=title_of(config.model),
        progress=report,
        registry=registry,
        download=world["download"],
    )
    return answer_of(result, report.settings)


def answer_of(result: RunResult, settings: RunSettings) -> Answer:
    """Word the result of a run."""
    data = result.to_data()
    text = result_text(data, next_command(data, settings))
    if result.checks is not None:
        text = f"{text}\n\n{report_text(result.checks)}"
    return Answer(data, text)


def say_what_is_ignored(
    job: Job, *, density: float | None, epochs: int | None = None, lr: float | None = None
) -> None:
    """Note which options the pruner overrules or has no use for, of those that were given."""
    pruner, rounds = job.recipe.pruner, job.recipe.schedule.round_epochs
    if density is not None and density != job.density:
        echo(
            f"note: pruner '{pruner}' insists on density {job.density:g}; "
            f"--density {density:g} is ignored",
            err=True,
        )
    if epochs is not None and rounds is not None and rounds != epochs:
        echo(
            f"note: pruner '{pruner}' trains rounds of {number_of(rounds, 'epoch')} "
            f"(schedule.every); "
            f"--epochs {epochs} does not change that",
            err=True,
        )
    if lr is not None and not needs_training(job.recipe):
        echo(
            f"note: the search of pruner '{pruner}' trains nothing, so --lr {lr:g} is ignored; "
            "--finetune-lr is that of fine-tuning",
            err=True,
        )


def next_command(data: Mapping[str, Any], settings: RunSettings) -> str:
    """Suggest what to try with the ticket: does another order of the data make a difference?"""
    words = ["gemkit", "finetune", data["ticket"], "--seed", str(data["seed"] + 1)]
    words += [word for file in settings.plugins for word in ("--plugin", file)]
    words += ["--data-dir", settings.data_dir] if settings.data_dir else []
    words += ["--model", data["model"]["custom"]] if "custom" in data["model"] else []
    return shlex.join(words)
