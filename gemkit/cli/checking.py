"""The body of `gemkit check`, and of `gemkit run --check`."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

from gemkit.checks import TICKET, Trial, Unmade, trials, work
from gemkit.cli import signals
from gemkit.cli.answers import Answer
from gemkit.cli.bench import Bench, load_data, only_first_speaks, open_fabric, together
from gemkit.cli.checkfile import CheckFile
from gemkit.cli.choices import validated
from gemkit.cli.fields import Fields, sort_fields
from gemkit.cli.job import Job
from gemkit.cli.mishaps import explained
from gemkit.cli.networks import network_of
from gemkit.cli.progress import warning
from gemkit.cli.retraining import parts_of
from gemkit.cli.screen import echo
from gemkit.cli.ticket_argument import FOUND, ticket_in
from gemkit.engine import finetune_plan
from gemkit.errors import GemkitError, OptionError, Stopped
from gemkit.events import Collapsed, Event, Noted
from gemkit.lab import Lab, lab_for
from gemkit.limits import LARGEST_SEED
from gemkit.parts import SanityCheck
from gemkit.plan import Plan, Runtime
from gemkit.plugins import load_plugins
from gemkit.registry import Registry
from gemkit.report.picture import draw
from gemkit.report.tables import facts, percent
from gemkit.report.verdicts import MARGIN, verdict_table, verdicts
from gemkit.rundir import RunDir, alone_in
from gemkit.ticket import Ticket

Checks = Mapping[str, SanityCheck]


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
    fabric = open_fabric(runtime)
    with only_first_speaks(fabric) as nowhere:
        data = load_data(dataset, world, fabric)
        typed = world["model"] is not None
        ticket.check_fit(network_of(ticket, model, data.shape, data.classes, typed=typed))
        lab = lab_for(
            ticket,
            data=data,
            build=partial(model.build, data.shape, data.classes),
            registry=registry,
            runtime=runtime,
            fabric=fabric,
            observers=[Warnings()],
        )
        made = CheckFile.about(ticket, plan, lab, model, dataset)
        folder = nowhere or out or file.path.parent
        with _going_on(), alone_in(folder):
            with together(fabric):
                book = made.continued(folder, force=force)
            report = carry_out(ticket, checks, seeds, lab, plan, book, margin)
    return Answer(report, report_text(report))


@contextmanager
def _going_on() -> Iterator[None]:
    """Say how checks that are interrupted, or have no room on the disk, go on."""
    again = "what is measured is in checks.json, and the same command goes on from there"
    try:
        with explained(again), signals.raised():
            yield
    except Stopped as stop:
        raise Stopped(stop.signal, f"stopped by {Signals(stop.signal).name}; {again}") from stop


def lab_of(job: Job, bench: Bench, registry: Registry) -> Lab:
    """Prepare the search of a run, so that it can be done again."""
    return Lab(
        recipe=job.recipe,
        density=job.density,
        plan=job.search,
        data=bench.data,
        build=partial(job.model.build, bench.data.shape, bench.data.classes),
        registry=registry,
        seed=job.seed,
        runtime=job.runtime,
        fabric=bench.fabric,
        observers=[Warnings()],
        on_collapse=job.on_collapse,
    )


def check_run(
    job: Job,
    run_dir: RunDir,
    result: Mapping[str, Any],
    checks: Checks,
    lab: Lab,
    seeds: int,
) -> dict[str, Any]:
    """Check the ticket of a run that has just ended; its own accuracies are known already."""
    ticket = Ticket.load(run_dir.ticket, within=run_dir.path)
    known = Trial(
        check=TICKET,
        seed=job.seed,
        kept=ticket.kept,
        prunable=ticket.prunable,
        before=result["accuracy_before"],
        after=result["accuracy_after"],
    )
    made = CheckFile.about(ticket, job.finetune, lab, job.model, job.dataset)
    with together(lab.fabric):
        book = made.continued(run_dir.path, force=False)
    if not any((trial.check, trial.seed) == (TICKET, job.seed) for trial in book.trials):
        book = book.with_trial(known)
    return carry_out(ticket, checks, seeds, lab, job.finetune, book, MARGIN)


def make_checks(registry: Registry, names: Iterable[str], fields: Fields | None = None) -> Checks:
    """Build the parts for these names, each with the fields given for it."""
    checks = {}
    for name in names:
        part = registry.build("checks", name, (fields or {}).get(name.partition(":")[0]))
        assert isinstance(part, SanityCheck)
        checks[name] = part
    return checks


def carry_out(
    ticket: Ticket,
    checks: Checks,
    count: int,
    lab: Lab,
    plan: Plan,
    book: CheckFile,
    margin: float,
) -> dict[str, Any]:
    """Measure what is missing, write it down trial by trial, and judge."""
    book = book.asking(checks, lab.registry)
    seeds = [(ticket.info.seed + offset) % (LARGEST_SEED + 1) for offset in range(count)]
    left = len(work(list(checks), seeds, book.trials))
    began = time.perf_counter()
    for number, trial in enumerate(trials(ticket, checks, seeds, lab, plan, book.trials), 1):
        book = book.with_trial(trial)
        book.write(margin)
        seconds = (time.perf_counter() - began) / number * (left - number)
        echo(f"[{number}/{left}] {_line(trial)}  {seconds:.0f} s left", err=True)
    report = book.write(margin)
    try:
        title = f"{ticket.info.pruner}, density {ticket.info.density_target:g}"
        measured = [Trial(**trial) for trial in report["trials"]]
        pictures = [str(file) for file in draw(measured, title, book.path.parent, "checks")]
    except GemkitError as error:
        echo(f"note: {error}", err=True)
        pictures = []
    return report | {"file": str(book.path), "pictures": pictures}


def report_text(report: Mapping[str, Any]) -> str:
    """Show the verdicts as a table, and where everything is."""
    measured = [Trial(**trial) for trial in report["trials"]]
    margin = report["margin"]
    rows = {
        "margin": f"a drop counts from {100 * margin:g} % of the test images on",
        "files": ", ".join([report["file"], *report["pictures"]]),
    }
    table = verdict_table(measured, verdicts(measured, margin))
    missing = [f"\n{_line(Unmade(**one))}" for one in report["unmade"]]
    return f"{table}{''.join(missing)}\n\n{facts(rows)}"


def _line(trial: Trial | Unmade) -> str:
    if isinstance(trial, Unmade):
        return f"seed {trial.seed}, {trial.check}: not made: {trial.reason}"
    return (
        f"seed {trial.seed}, {trial.check}: {percent(trial.before)} before fine-tuning, "
        f"{percent(trial.after)} after"
    )


class Warnings:
    """Passes warnings of searches on; a bar for each of so many phases would only be in the way.

    A control in a hundred freezes may lose the same layers a hundred times: once is enough.
    """

    def __init__(self) -> None:
        self.said: object = None

    def __call__(self, event: Event) -> None:
        """Say what has not just been said."""
        if isinstance(event, Collapsed | Noted):
            news = event.layers if isinstance(event, Collapsed) else event.message
            if news != self.said:
                echo(warning(event), err=True)
            self.said = news


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
