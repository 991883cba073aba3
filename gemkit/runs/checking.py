"""Sanity checks of a run's ticket, written down trial by trial."""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gemkit.checks import TICKET, Trial, trials, work
from gemkit.errors import GemkitError
from gemkit.lab import Lab
from gemkit.limits import LARGEST_SEED
from gemkit.parts import SanityCheck
from gemkit.phase import Listener
from gemkit.plan import Plan
from gemkit.registry import Registry
from gemkit.report.picture import draw
from gemkit.report.verdicts import MARGIN
from gemkit.rundir import RunDir
from gemkit.runs.bench import Bench, together
from gemkit.runs.checkfile import CheckFile
from gemkit.runs.job import Job
from gemkit.runs.progress import Progress
from gemkit.ticket import Ticket

Checks = Mapping[str, SanityCheck]
Fields = Mapping[str, Mapping[str, Any]]
"""Check -> field -> value."""


def lab_of(job: Job, bench: Bench, registry: Registry, observers: Sequence[Listener] = ()) -> Lab:
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
        observers=observers,
        on_collapse=job.on_collapse,
    )


def check_run(
    job: Job,
    run_dir: RunDir,
    result: Mapping[str, Any],
    checks: Checks,
    lab: Lab,
    progress: Progress,
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
    seeds = job.settings.check_seeds
    return carry_out(ticket, checks, seeds, lab, job.finetune, book, MARGIN, progress)


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
    progress: Progress,
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
        progress.measured(trial, number, left, seconds)
    report = book.write(margin)
    try:
        title = f"{ticket.info.pruner}, density {ticket.info.density_target:g}"
        measured = [Trial(**trial) for trial in report["trials"]]
        pictures = [str(file) for file in draw(measured, title, book.path.parent, "checks")]
    except GemkitError as error:
        progress.note(str(error))
        pictures = []
    return report | {"file": str(book.path), "pictures": pictures}
