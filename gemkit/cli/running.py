"""The body of `gemkit run`."""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from gemkit import engine, rundir
from gemkit.checks import check_fit
from gemkit.cli.bench import Bench, only_first_speaks, open_fabric, set_up
from gemkit.cli.checking import check_run, lab_of, make_checks, report_text
from gemkit.cli.job import Job, resolve
from gemkit.cli.ladder import Ladder
from gemkit.cli.options import Answer
from gemkit.cli.progress import progress
from gemkit.errors import GemkitError
from gemkit.parts import Observer
from gemkit.phase import Listener
from gemkit.plugins import load_plugins
from gemkit.registry import Registry
from gemkit.report.results import result_text
from gemkit.report.tables import layer_table, percent
from gemkit.rundir import RunDir
from gemkit.ticket import Ticket


def start(
    *,
    observers: Sequence[str],
    out: Path | None,
    density_given: bool,
    epochs_given: bool,
    world: Mapping[str, Any],
    training: Mapping[str, Any],
    plugins: Sequence[Path],
    checks: Sequence[str],
    check_seeds: int,
    **choices: Any,  # noqa: ANN401 - the rest of what `resolve` takes
) -> Answer:
    """Resolve what was asked for, check it, and only then load data, make files and compute."""
    registry = load_plugins(files=plugins)
    job = resolve(registry, world=world, training=training, **choices)
    listeners = [_observer(registry, name) for name in observers]
    controls = make_checks(registry, checks)
    if out is not None:
        rundir.check_free(out)
    fabric = open_fabric(job.runtime)
    with only_first_speaks(fabric) as nowhere:
        say_what_is_ignored(
            job,
            density=training["density"] if density_given else None,
            epochs=training["epochs"] if epochs_given else None,
        )
        bench = set_up(job.model, job.dataset, world, job.seed, job.runtime, fabric)
        job = job.decided(bench.data)
        lab = lab_of(job, bench, registry)
        check_fit(controls, lab)
        run_dir = rundir.create(nowhere or out, job.name)
        run_dir.write_config(job.to_data())
        click.echo(job.recipe.to_toml())
        with _saying_what_remains(run_dir), run_dir.metrics() as log:
            heard_by = [part.listen(run_dir.path) for part in listeners]
            data = carry_out(job, bench, run_dir, [log, *heard_by])
        run_dir.write_result(data)
        text = result_text(data, _next_command(data, plugins, world["data_dir"]))
        if controls:
            data["checks"] = check_run(job, run_dir, data, controls, lab, check_seeds)
            text = f"{text}\n\n{report_text(data['checks'])}"
    return Answer(data, text)


def carry_out(
    job: Job, bench: Bench, run_dir: RunDir, listeners: Sequence[Listener]
) -> dict[str, Any]:
    """Search, measure, fine-tune, measure; every ticket is on disk as soon as it exists."""
    began = time.perf_counter()
    ladder = Ladder(run_dir, partial(bench.label, versions=job.plugins))
    ticket = _search(job, bench, [ladder.listen, *listeners], ladder.add)
    ticket.save(run_dir.ticket)
    searched = time.perf_counter()
    before = bench.measure(ticket)
    if ladder.rungs:
        click.echo(f"{ladder}\n")
    click.echo(layer_table(ticket))
    click.echo(f"\naccuracy before fine-tuning: {percent(before)}\n")
    trained = bench.finetune(ticket, job.finetune, job.seed, listeners)
    trained.save(run_dir.finetuned)
    after = bench.measure(trained)
    ended = time.perf_counter()
    return {
        "pruner": job.recipe.pruner,
        "density_target": ticket.info.density_target,
        "density": ticket.density,
        "kept": ticket.kept,
        "prunable": ticket.prunable,
        "alive": ticket.info.alive,
        "accuracy_before": before,
        "accuracy_after": after,
        "seed": job.seed,
        "epochs": ticket.info.epochs,
        "finetune_epochs": job.finetune.epochs,
        "seconds": round(ended - began, 3),
        "seconds_search": round(searched - began, 3),
        "ticket": str(run_dir.ticket),
        "finetuned": str(run_dir.finetuned),
        "ladder": ladder.rungs,
        "run_dir": str(run_dir.path),
        "device": str(bench.fabric.device),
        "recipe": ticket.info.recipe,
        "model": ticket.info.model,
        "dataset": ticket.info.dataset,
        "versions": ticket.info.versions,
        "layers": [layer._asdict() for layer in ticket.layers],
    }


def _search(
    job: Job, bench: Bench, listeners: Sequence[Listener], on_ticket: Callable[[Ticket], None]
) -> Ticket:
    """Find the ticket and show how it goes."""
    with progress() as show:
        ticket = engine.search(
            job.recipe,
            bench.model,
            bench.data,
            density=job.density,
            plan=job.search,
            seed=job.seed,
            runtime=job.runtime,
            on_collapse=job.on_collapse,
            observers=[show, *listeners],
            fabric=bench.fabric,
            on_ticket=on_ticket,
        )
    return bench.label(ticket, job.plugins)


def say_what_is_ignored(job: Job, *, density: float | None, epochs: int | None = None) -> None:
    """Note which options the pruner overrules, of those that were given."""
    pruner, rounds = job.recipe.pruner, job.recipe.schedule.round_epochs
    if density is not None and density != job.density:
        click.echo(
            f"note: pruner '{pruner}' insists on density {job.density:g}; "
            f"--density {density:g} is ignored",
            err=True,
        )
    if epochs is not None and rounds not in (None, epochs):
        click.echo(
            f"note: pruner '{pruner}' trains rounds of {rounds} epochs (schedule.every); "
            f"--epochs {epochs} does not change that",
            err=True,
        )


@contextmanager
def _saying_what_remains(run_dir: RunDir) -> Iterator[None]:
    """Add to an error what the run leaves behind."""
    try:
        yield
    except GemkitError as error:
        remains = ", ".join(run_dir.contents())
        ticket = "" if run_dir.ticket.exists() else "; there is no ticket"
        raise type(error)(f"{error}\n{run_dir.path} keeps {remains}{ticket}") from error


def _observer(registry: Registry, name: str) -> Observer:
    """Build the observer of this name."""
    part = registry.build("observers", name)
    assert isinstance(part, Observer)
    return part


def _next_command(data: Mapping[str, Any], plugins: Sequence[Path], folder: Path | None) -> str:
    """Suggest what to try with the ticket: does another order of the data make a difference?"""
    words = ["gemkit", "finetune", data["ticket"], "--seed", str(data["seed"] + 1)]
    words += [word for file in plugins for word in ("--plugin", str(file))]
    words += ["--data-dir", str(folder)] if folder else []
    words += ["--model", data["model"]["custom"]] if "custom" in data["model"] else []
    return shlex.join(words)
