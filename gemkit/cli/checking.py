"""The body of `gemkit check`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

from gemkit.cli.answers import Answer
from gemkit.cli.fields import sort_fields
from gemkit.cli.processes import only_first_speaks
from gemkit.cli.reporting import Report, report_text
from gemkit.cli.retraining import parts_of
from gemkit.cli.ticket_argument import FOUND, ticket_in
from gemkit.engine import finetune_plan
from gemkit.errors import OptionError, Stopped
from gemkit.lab import lab_for
from gemkit.plan import Plan, Runtime
from gemkit.plugins import load_plugins
from gemkit.rundir import RunDir, alone_in
from gemkit.runs import signals
from gemkit.runs.bench import load_data, open_fabric, together
from gemkit.runs.checkfile import CheckFile
from gemkit.runs.checking import carry_out, make_checks
from gemkit.runs.failures import explained
from gemkit.runs.networks import network_of
from gemkit.runs.specs import validated


def start(
    source: Path,
    *,
    names: str,
    seeds: int,
    margin: float,
    finetune_epochs: int | None,
    fields: Sequence[str],
    world: Mapping[str, Any],
    machine: Mapping[str, Any],
    out: Path | None,
    force: bool,
    plugins: Sequence[Path],
) -> Answer:
    """Resolve what was asked for, check it, and only then load data and compute."""
    registry = load_plugins(files=plugins)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    kinds = [name.partition(":")[0] for name in wanted]
    given = sort_fields(fields, (*kinds, "model", "dataset", "finetune"))
    checks = make_checks(registry, wanted, given)
    if not checks:
        raise OptionError("--checks names none; see `gemkit parts checks`")
    file = ticket_in(source, FOUND)
    ticket = file.load()
    plan = _plan(file.path.parent, finetune_epochs, given["finetune"])
    runtime = validated(Runtime, machine, "machine")
    model, dataset = parts_of(ticket, registry, world, given, weights=True)
    fabric, report = open_fabric(runtime), Report()
    with only_first_speaks(fabric) as nowhere:
        images = load_data(dataset, fabric, world["data_dir"], download=world["download"])
        typed = world["model"] is not None
        ticket.check_fit(network_of(ticket, model, images.shape, images.classes, typed=typed))
        lab = lab_for(
            ticket,
            data=images,
            build=partial(model.build, images.shape, images.classes),
            registry=registry,
            runtime=runtime,
            fabric=fabric,
            observers=[report.controls()],
        )
        made = CheckFile.about(ticket, plan, lab, model, dataset)
        folder = nowhere or out or file.path.parent
        with _going_on(), alone_in(folder):
            with together(fabric):
                book = made.continued(folder, force=force)
            data = carry_out(ticket, checks, seeds, lab, plan, book, margin, report)
    return Answer(data, report_text(data))


@contextmanager
def _going_on() -> Iterator[None]:
    """Say how checks that are interrupted, or have no room on the disk, go on."""
    again = "what is measured is in checks.json, and the same command goes on from there"
    try:
        with explained(again), signals.raised():
            yield
    except Stopped as stop:
        raise Stopped(stop.signal, f"stopped by {Signals(stop.signal).name}; {again}") from stop


def _plan(folder: Path, epochs: int | None, fields: Mapping[str, Any]) -> Plan:
    """Return the run's own plan of fine-tuning, where there is a run, with other values given."""
    run_dir, own = RunDir(folder), {}
    if run_dir.is_run():
        try:
            own = dict(run_dir.config()["finetune"])
        except (ValueError, TypeError, KeyError) as error:
            raise OptionError(
                f"{folder / 'config.toml'} does not tell how the run fine-tuned: {error}"
            ) from error
    other = {} if epochs is None else {"epochs": epochs}
    return finetune_plan(validated(Plan, {**own, **other, **fields}, "finetune"))
