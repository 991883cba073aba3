"""The bodies of `gemkit finetune` and `gemkit eval`: a ticket file, rebuilt and put to work."""

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lightning_fabric import Fabric

from gemkit.cli.answers import Answer
from gemkit.cli.fields import Fields, sort_fields
from gemkit.cli.processes import only_first_speaks
from gemkit.cli.progress import progress
from gemkit.cli.screen import echo
from gemkit.cli.ticket_argument import TicketPath
from gemkit.engine import finetune_plan
from gemkit.errors import OptionError, TicketError
from gemkit.parts import DatasetPart, ModelPart
from gemkit.plan import Plan, Runtime
from gemkit.plugins import load_plugins
from gemkit.registry import Registry
from gemkit.report.tables import facts, percent
from gemkit.runs.bench import Bench, Split, open_fabric, set_up
from gemkit.runs.networks import network_of
from gemkit.runs.specs import dataset_part, recorded_model, validated
from gemkit.ticket import Ticket
from gemkit.wording import number_of


def train(
    file: TicketPath,
    *,
    world: Mapping[str, Any],
    training: Mapping[str, Any],
    seed: int | None,
    fields: Sequence[str],
    machine: Mapping[str, Any],
    out: Path | None,
    force: bool,
    plugins: Sequence[Path],
) -> Answer:
    """Fine-tune a ticket file and write the result beside it, or where asked."""
    registry = load_plugins(files=plugins)
    given = sort_fields(fields, ("model", "dataset", "finetune"))
    plan = finetune_plan(validated(Plan, {**training, **given["finetune"]}, "finetune"))
    runtime = validated(Runtime, machine, "machine")
    ticket = file.load()
    target = beside(file.path, "finetuned", out, force=force)
    seed = ticket.info.seed if seed is None else seed
    fabric = open_fabric(runtime)
    with only_first_speaks(fabric) as nowhere:
        if ticket.info.stage == "finetuned":
            echo("note: the weights of this ticket are trained; they train on", err=True)
        bench = rebuild(ticket, registry, world, given, seed, runtime, fabric)
        began = time.perf_counter()
        before = bench.measure(ticket)
        with progress() as show:
            trained = bench.label(bench.finetune(ticket, plan, seed, [show]), {})
        trained.save(nowhere / target.name if nowhere else target)
        after = bench.measure(trained)
    data = _about(trained, bench) | {
        "ticket": str(target),
        "started_from": str(file),
        "accuracy_before": before,
        "accuracy_after": after,
        "seed": seed,
        "epochs": plan.epochs,
        "compact": runtime.compact,
        "seconds": round(time.perf_counter() - began, 3),
    }
    return Answer(data, _trained_text(data))


def _trained_text(data: Mapping[str, Any]) -> str:
    """Word what fine-tuning did."""
    before, after = percent(data["accuracy_before"]), percent(data["accuracy_after"])
    return facts(
        {
            "accuracy": f"{before} before, {after} after (test)",
            "density": f"{data['density']:.4f}",
            "time": f"{data['seconds']:.1f} s",
            "ticket": data["ticket"],
        }
    )


def measure(
    file: TicketPath,
    *,
    world: Mapping[str, Any],
    fields: Sequence[str],
    split: Split,
    machine: Mapping[str, Any],
    plugins: Sequence[Path],
) -> Answer:
    """Evaluate a ticket file on one split."""
    registry = load_plugins(files=plugins)
    given = sort_fields(fields, ("model", "dataset"))
    runtime = validated(Runtime, machine, "machine")
    ticket = file.load()
    fabric = open_fabric(runtime)
    with only_first_speaks(fabric):
        bench = rebuild(ticket, registry, world, given, ticket.info.seed, runtime, fabric)
        began = time.perf_counter()
        score = bench.measure(ticket, split)
        images = len(getattr(bench.data, split))
    data = _about(ticket, bench) | {
        "ticket": str(file),
        "split": split,
        "images": images,
        "accuracy": score,
        "seconds": round(time.perf_counter() - began, 3),
    }
    text = (
        f"{percent(score)} of {number_of(images, f'{split} image')}, with {ticket.kept:,} of "
        f"{ticket.prunable:,} weights (density {ticket.density:.4f}, {ticket.info.stage})"
    )
    return Answer(data, text)


def rebuild(
    ticket: Ticket,
    registry: Registry,
    world: Mapping[str, Any],
    fields: Fields,
    seed: int,
    runtime: Runtime,
    fabric: Fabric,
) -> Bench:
    """Build the network and load the data a ticket names, or those given instead.

    The ticket brings the weights, so the network takes none from elsewhere.
    """
    model, dataset = parts_of(ticket, registry, world, fields, weights=False)
    build = partial(network_of, ticket, model, typed=world["model"] is not None)
    return set_up(
        model,
        dataset,
        seed,
        runtime,
        fabric,
        data_dir=world["data_dir"],
        download=world["download"],
        build=build,
    )


def parts_of(
    ticket: Ticket,
    registry: Registry,
    world: Mapping[str, Any],
    fields: Fields,
    *,
    weights: bool,
) -> tuple[ModelPart, DatasetPart]:
    """Find the network and the data set a ticket names, or those given instead.

    `weights` says whether the network is going to be built with the weights it starts from.
    """
    said: Mapping[str, Any] = ticket.info.model or {}
    if world["model"] is None and "custom" not in said:
        said = _spec(ticket, "model")
    model = recorded_model(registry, said, world["model"], fields["model"], weights=weights)
    spec = world["dataset"] or _spec(ticket, "dataset")
    return model, dataset_part(registry, spec, fields["dataset"], world["train_on"])


def _spec(ticket: Ticket, what: Literal["model", "dataset"]) -> Mapping[str, Any]:
    """Return what the ticket says about its network or data, if it says it."""
    spec = getattr(ticket.info, what)
    if spec is None or "name" not in spec:
        raise TicketError(f"this ticket does not say which {what} it belongs to; give --{what}")
    known: Mapping[str, Any] = spec
    return known


def beside(file: Path, suffix: str, out: Path | None, *, force: bool) -> Path:
    """Decide where what is made of a ticket goes, and refuse to overwrite anything unasked."""
    name = f"{file.stem}-{suffix}.safetensors"
    target = file.with_name(name) if out is None else out / name if out.is_dir() else out
    if os.path.lexists(target) and not force:
        raise OptionError(f"{target} exists; overwrite it with --force, or give another --out")
    if not target.parent.is_dir():
        raise OptionError(f"there is no folder {target.parent} for {target.name}; create it first")
    return target


def _about(ticket: Ticket, bench: Bench) -> dict[str, Any]:
    """Say which ticket was used, and on what."""
    return {
        "pruner": ticket.info.pruner,
        "density": ticket.density,
        "density_target": ticket.info.density_target,
        "kept": ticket.kept,
        "prunable": ticket.prunable,
        "stage": ticket.info.stage,
        "model": bench.origin["model"],
        "dataset": bench.origin["dataset"],
        "device": str(bench.fabric.device),
    }
