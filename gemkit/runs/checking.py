"""Sanity checks and measurements of a run's ticket, saved one by one."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from gemkit.core.errors import GemkitError, PluginError
from gemkit.core.limits import MAX_SEED
from gemkit.core.memory import during
from gemkit.plugins.registry import Registry
from gemkit.plugins.titles import pruner_title
from gemkit.report.picture import draw
from gemkit.runs.checkfile import CheckFile
from gemkit.runs.directory import RunDir
from gemkit.runs.progress import Progress
from gemkit.runs.resolved import ResolvedRun
from gemkit.runs.setup import Setup, together
from gemkit.sanity.check import SanityCheck
from gemkit.sanity.context import CheckContext, refuse_partway
from gemkit.sanity.measurement import Measurement
from gemkit.sanity.trials import TICKET, Check, Trial, pending, trials
from gemkit.sanity.verdicts import MARGIN
from gemkit.tickets.ticket import Ticket
from gemkit.training.loop import Listener
from gemkit.training.metrics import values_of

Checks = Mapping[str, Check]
Fields = Mapping[str, Mapping[str, Any]]
"""Check -> field -> value."""


def run_context(
    run: ResolvedRun, setup: Setup, registry: Registry, observers: Sequence[Listener] = ()
) -> CheckContext:
    """Prepare the search of a run, so that it can be done again."""
    return CheckContext(
        recipe=run.recipe,
        density=run.density,
        plan=run.search,
        data=setup.data,
        build=partial(run.model.build, setup.data.shape, run.task.outputs(setup.data)),
        registry=registry,
        seed=run.seed,
        runtime=run.runtime,
        fabric=setup.fabric,
        observers=observers,
        on_collapse=run.on_collapse,
        finetune_plan=run.finetune,
        task=run.task,
    )


def check_run(
    run: ResolvedRun,
    run_dir: RunDir,
    result: Mapping[str, Any],
    checks: Checks,
    context: CheckContext,
    progress: Progress,
) -> dict[str, Any]:
    """Check the ticket of a finished run, whose own metric is already known."""
    fabric = context.fabric
    shared = run_dir.path if fabric is None else fabric.broadcast(run_dir.path)
    ticket = Ticket.load(RunDir(shared).ticket, within=shared)
    refuse_partway(ticket.info)
    known = Trial(
        check=TICKET,
        seed=run.seed,
        kept=ticket.kept,
        prunable=ticket.prunable,
        before=values_of(result)["before"],
        after=values_of(result)["after"],
    )
    new = CheckFile.new(ticket, context, run.model, run.dataset)
    with together(context.fabric):
        file = new.resumed(run_dir.path, force=False)
    if fabric is not None:  # all processes must do the same trials
        file = replace(fabric.broadcast(file), path=file.path)
    if not any((trial.check, trial.seed) == (TICKET, run.seed) for trial in file.trials):
        file = file.with_result(known)
    seeds = run.settings.check_seeds
    return run_checks(ticket, checks, seeds, context, file, MARGIN, progress)


def make_checks(registry: Registry, names: Iterable[str], fields: Fields | None = None) -> Checks:
    """Build the checks and measurements with these names, each with the fields given for it."""
    checks: dict[str, Check] = {}
    for name in names:
        short = name.partition(":")[0]
        part = registry.build(_kind_of(registry, short), name, (fields or {}).get(short))
        assert isinstance(part, SanityCheck | Measurement)
        checks[name] = part
    return checks


def _kind_of(registry: Registry, name: str) -> str:
    """Return the kind of a check or measurement, or of the one whose name is closest."""
    known = {kind: registry.parts[kind] for kind in ("checks", "measurements")}
    kinds = [one for one in known if name in known[one] or (one, name) in registry.contested]
    if len(kinds) > 1:
        plugins = " and ".join(f"plugin '{known[one][name].plugin}'" for one in kinds)
        raise PluginError(
            f"'{name}' is a check and a measurement, of {plugins}; uninstall one of them, or set "
            "GEMKIT_PLUGINS to a list with only one"
        )
    closest = get_close_matches(name, [*known["checks"], *known["measurements"]], n=1)
    measured = any(one in known["measurements"] for one in closest)
    return (kinds or ["measurements" if measured else "checks"])[0]


@during("checking")
def run_checks(
    ticket: Ticket,
    checks: Checks,
    count: int,
    context: CheckContext,
    file: CheckFile,
    margin: float,
    progress: Progress,
) -> dict[str, Any]:
    """Measure what is missing, save every result, and judge."""
    file = file.with_checks(checks, context.registry)
    seeds = [(ticket.info.seed + offset) % (MAX_SEED + 1) for offset in range(count)]
    left = len(pending(list(checks), seeds, file.done))
    began = time.perf_counter()
    with progress.checking() as show:
        context = replace(context, observers=[*context.observers, show])
        for number, result in enumerate(trials(ticket, checks, seeds, context, file.done), 1):
            file = file.with_result(result)
            file.write(margin)
            seconds = (time.perf_counter() - began) / number * (left - number)
            progress.measured(result, number, left, seconds)
    report = file.write(margin)
    try:
        pruner = pruner_title(ticket.info.recipe) or ticket.info.pruner
        title = f"{pruner}, density {ticket.info.density_target:g}"
        measured = [Trial(**trial) for trial in report["trials"]]
        positive = [one["check"] for one in report["verdicts"] if one["expects"] == "same"]
        metric = context.task.metric
        paths = draw(measured, title, file.path.parent, "checks", positive, metric)
        pictures = [str(path) for path in paths]
    except GemkitError as error:
        progress.note(str(error))
        pictures = []
    return report | {"file": str(file.path), "pictures": pictures}
