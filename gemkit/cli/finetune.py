"""`gemkit finetune` and `gemkit eval`: train or measure the ticket in a file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemkit.cli.command import (
    Answer,
    SectionedCommand,
    answers_json,
    bundle,
    echo,
    load_registry,
    option,
    split_text,
)
from gemkit.cli.options import (
    beside_options,
    fields_option,
    measuring_machine_options,
    phase_options,
    plugin_option,
    seed_option,
    training_machine_options,
    world_options,
)
from gemkit.cli.targets import beside, claimed
from gemkit.cli.task import task_options, ticket_task
from gemkit.cli.tickets import FOUND, TRAINED, TicketPath, rebuild, ticket_argument

if TYPE_CHECKING:
    from gemkit.runs.setup import Setup, Split
    from gemkit.tickets.ticket import Ticket


@click.command(cls=SectionedCommand)
@ticket_argument(FOUND)
@world_options(None, None)
@bundle("training", phase_options("fine-tuning", "by optimizer"))
@task_options
@seed_option(None)
@fields_option("model, dataset, finetune or objective")
@training_machine_options
@beside_options("finetuned", "the ticket with trained weights")
@answers_json
@plugin_option
def finetune(
    file: TicketPath,
    world: Mapping[str, Any],
    training: Mapping[str, Any],
    task: Mapping[str, Any],
    seed: int | None,
    fields: Sequence[str],
    machine: Mapping[str, Any],
    out: Path | None,
    force: bool,
    plugins: Sequence[Path],
) -> Answer:
    """Train the weights of a TICKET from their initial values, and measure before and after.

    Network and data are those that the ticket records. With the ticket's own seed, this repeats
    the fine-tuning of the run that found it. Of a RUN, use the ticket that its search found.
    """
    from gemkit.cli.configure import sort_fields
    from gemkit.cli.progress import only_first_prints, progress
    from gemkit.pruning.finetune import finetune_plan
    from gemkit.runs.result import measured
    from gemkit.runs.setup import open_fabric
    from gemkit.runs.specs import validated
    from gemkit.training.plan import Plan, Runtime

    registry = load_registry(plugins)
    given = sort_fields(fields, ("model", "dataset", "finetune", "objective"))
    plan = finetune_plan(validated(Plan, {**training, **given["finetune"]}, "finetune"))
    runtime = validated(Runtime, machine, "machine")
    ticket = file.load()
    own = ticket_task(ticket, registry, task, given["objective"])
    target = beside(file.path, "finetuned", out, force=force)
    seed = ticket.info.seed if seed is None else seed
    fabric = open_fabric(runtime)
    with only_first_prints(fabric) as elsewhere, claimed(target, fabric, force=force):
        if ticket.info.stage == "finetuned":
            echo(
                "note: this ticket is fine-tuned already; its weights are trained further", err=True
            )
        setup = rebuild(ticket, registry, world, given, seed, runtime, fabric, own)
        began = time.perf_counter()
        before = setup.measure(ticket)
        with progress() as show:
            trained = setup.label(setup.finetune(ticket, plan, seed, [show]), {})
        trained.save(elsewhere / target.name if elsewhere else target)
        after = setup.measure(trained)
    data = _about(trained, setup) | {
        "ticket": str(target),
        "started_from": str(file),
        **measured(own.metric, before, after),
        "seed": seed,
        "epochs": plan.epochs,
        "compact": runtime.compact,
        "seconds": round(time.perf_counter() - began, 3),
    }
    return Answer(data, _text(data))


def _text(data: Mapping[str, Any]) -> str:
    """Return what fine-tuning did as text."""
    from gemkit.report.tables import facts
    from gemkit.training.metrics import value_text

    metric = data["metric"]
    before, after = value_text(data["before"], metric), value_text(data["after"], metric)
    return facts(
        {
            metric: f"{before} before, {after} after (test)",
            "density": f"{data['density']:.4f}",
            "time": f"{data['seconds']:.1f} s",
            "ticket": data["ticket"],
        }
    )


@click.command("eval", cls=SectionedCommand)
@ticket_argument(TRAINED, FOUND)
@world_options(None, None)
@task_options
@fields_option("model, dataset or objective")
@option(
    "Network and data",
    "--split",
    type=click.Choice(["test", "validation", "train"]),
    default="test",
    help="Which images to measure on.",
)
@measuring_machine_options
@answers_json
@plugin_option
def evaluate(
    file: TicketPath,
    world: Mapping[str, Any],
    task: Mapping[str, Any],
    fields: Sequence[str],
    split: Split,
    machine: Mapping[str, Any],
    plugins: Sequence[Path],
) -> Answer:
    """Measure a TICKET as it is, without training: its accuracy, or the metric of its run.

    Of a RUN, use the fine-tuned ticket, or the one that its search found if there is none.
    """
    from gemkit.cli.configure import sort_fields
    from gemkit.cli.progress import only_first_prints
    from gemkit.data.source import known_size
    from gemkit.runs.setup import open_fabric
    from gemkit.runs.specs import validated
    from gemkit.training.metrics import value_text
    from gemkit.training.plan import Runtime

    registry = load_registry(plugins)
    given = sort_fields(fields, ("model", "dataset", "objective"))
    runtime = validated(Runtime, machine, "machine")
    ticket = file.load()
    own = ticket_task(ticket, registry, task, given["objective"])
    metric, fabric = own.metric, open_fabric(runtime)
    with only_first_prints(fabric):
        setup = rebuild(ticket, registry, world, given, ticket.info.seed, runtime, fabric, own)
        began = time.perf_counter()
        value = setup.measure(ticket, split)
        images = known_size(getattr(setup.data, split))
    data = _about(ticket, setup) | {
        "ticket": str(file),
        "split": split,
        "images": images,
        **({"accuracy": value} if metric.name == "accuracy" else {}),
        "metric": metric.name,
        "higher_is_better": metric.higher_is_better,
        "value": value,
        "seconds": round(time.perf_counter() - began, 3),
    }
    what = "" if metric.name == "accuracy" else f"{metric.name} "
    text = (
        f"{what}{value_text(value, metric.name)} of {split_text(images, split)}, with "
        f"{ticket.kept:,} of {ticket.prunable:,} weights (density {ticket.density:.4f}, "
        f"{ticket.info.stage})"
    )
    return Answer(data, text)


def _about(ticket: Ticket, setup: Setup) -> dict[str, Any]:
    """Describe the ticket, and the network, data and device it was used with."""
    return {
        "pruner": ticket.info.pruner,
        "density": ticket.density,
        "density_target": ticket.info.density_target,
        "kept": ticket.kept,
        "prunable": ticket.prunable,
        "stage": ticket.info.stage,
        "model": setup.origin["model"],
        "dataset": setup.origin["dataset"],
        "device": str(setup.fabric.device),
    }
