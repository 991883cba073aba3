"""Carry out one stage, in whatever process an executor has: plain data in, plain data out.

The folder of the stage is locked while it works. Its checkpoints are those of a run, so a stage
whose process was killed continues from its last one, to the same bits.
"""

import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, chdir
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from gemkit.core.errors import (
    CollapseError,
    DataError,
    GemkitError,
    LostProcessError,
    OptionError,
    Stopped,
    StorageError,
)
from gemkit.core.memory import shortage
from gemkit.plugins.current import in_use
from gemkit.plugins.faults import exits_are_faults, fault_of
from gemkit.plugins.loader import load_plugins
from gemkit.plugins.registry import Registry
from gemkit.pruning.feasible import check_network
from gemkit.pruning.search import search
from gemkit.runs import signals
from gemkit.runs.checking import make_checks, run_context
from gemkit.runs.directory import RunDir
from gemkit.runs.failures import explained
from gemkit.runs.metrics import Log
from gemkit.runs.read_config import config_from
from gemkit.runs.resolved import ResolvedRun, resolve
from gemkit.runs.setup import open_fabric, set_up, with_threads
from gemkit.sanity.measurement import Measurement, measured_numbers
from gemkit.sanity.trials import fair_control
from gemkit.study.control import kept_control
from gemkit.study.group import carry_out_together
from gemkit.study.handover import keeper, start_from
from gemkit.study.job import Job
from gemkit.study.keys import check_data, key_of, search_data
from gemkit.study.levels import shared_levels
from gemkit.study.meter import Meter
from gemkit.study.stage_store import StageResult, StageStore
from gemkit.study.tracks import bound_in, collapse_in, curve_in
from gemkit.tickets.ticket import Ticket

_SAVED = "what was saved stays, and the same command continues from there"


def carry_out(task: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a stage, unless it is done already, and return how that ended.

    `state` is done, failed (with a `reason`), stopped (by a signal, and saved), or busy: another
    process works on the same stage. A stage on several devices gets processes of its own.
    """
    if task["config"]["runtime"].get("devices", 1) > 1:
        return carry_out_together(task)
    return work_on(task)


def join(task: Mapping[str, Any]) -> None:
    """Do what the first of several processes of a stage does, in a folder for the time being."""
    store, name = StageStore(Path(task["store"])), f"{task['kind']}-{task['key']}"
    with explained(""), tempfile.TemporaryDirectory() as path, chdir(task["cwd"]):
        folder = RunDir(Path(path))
        _measure(task, store, name, folder, Log(folder.log), first=False)


def work_on(task: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a stage in this process, or as the first of several."""
    store = StageStore(Path(task["store"]))
    name = f"{task['kind']}-{task['key']}"
    folder = store.folder(name)
    with ExitStack() as held:
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            held.enter_context(folder.locked())
        except OptionError:
            return {"state": "busy"}
        except StorageError as error:  # its file system has no locks
            return {"state": "failed", "reason": str(error)}
        except OSError as error:
            return {"state": "failed", "reason": f"cannot write to {folder.path}: {error.strerror}"}
        log = Log(folder.log)
        try:
            if store.result(name) is not None:
                return {"state": "done"}
            with exits_are_faults(), explained(_SAVED), chdir(task["cwd"]):
                _registry(tuple(task["plugins"]))  # a signal amid imports would look like a fault
                with signals.raised():
                    return _measure(task, store, name, folder, log)
        except Stopped as stop:
            log.say("stopped by a signal")
            return {"state": "stopped", "signal": stop.signal}
        except LostProcessError as error:
            log.say(f"error: {error}")
            raise  # the driver tries again
        except Exception as error:
            return _failed(store, name, log, error)


def _measure(
    task: Mapping[str, Any],
    store: StageStore,
    name: str,
    folder: RunDir,
    log: Log,
    *,
    first: bool = True,
) -> dict[str, Any]:
    """Carry out a stage in its folder, and write its result; only the first process does that."""
    meter = Meter()
    if first:
        if store.changes(name, task["about"]):
            folder.finish()
            log.say("a default has changed since it was saved, so it starts again")
        store.begin(name, task["about"])
    log.say("started")
    registry = _registry(tuple(task["plugins"]))
    run = resolve(registry, config_from(task["config"]), task["model"])
    with in_use(registry), with_threads(run.runtime.threads):
        setup = set_up(
            run.model,
            run.dataset,
            run.seed,
            run.runtime,
            open_fabric(run.runtime),
            data_dir=None if task["data_dir"] is None else Path(task["data_dir"]),
            task=run.task,
        )
        _check_key(task, run, registry)
        run = run.with_learning_rates(setup.data)
        job = Job(task, run, setup, registry, store, folder, meter, log, first)
        found = _KINDS[task["kind"]](job)
    if not first:
        return {"state": "done"}
    metric = run.task.metric
    result = StageResult(
        stage=name,
        metric=metric.name,
        higher_is_better=metric.higher_is_better,
        data=setup.data.fingerprint,
        seconds=round(job.meter.seconds, 3),
        cpu_seconds=round(job.meter.cpu * setup.fabric.world_size, 3),  # all work as long
        device=str(setup.fabric.device),
        versions={"gemkit": version("gemkit"), "torch": torch.__version__, **run.plugins},
        **found,
    )
    store.write_result(result)
    folder.finish()
    log.say("done")
    return {"state": "done"}


def _check_key(task: Mapping[str, Any], run: ResolvedRun, registry: Registry) -> None:
    """Refuse to work under a key that is no longer right, as after an edit of a plugin's file.

    It is called when plugins are loaded and the network is built: a later edit changes nothing.
    """
    search = search_data(run, registry)
    key = key_of("search", search)
    same = key == (task["search"] or task["key"])
    files = {**search.get("plugins", {})}
    if task["kind"] == "check":
        [check] = make_checks(registry, [task["check"]]).values()
        own = check_data(run, key, check, registry)
        same = same and key_of("check", own) == task["key"]
        files |= own.get("plugins", {})
    if not same:
        raise OptionError(
            f"what this stage is made with ({', '.join(files) or 'gemkit itself'}) has changed "
            "since the study was started; restore it, or start the same command again, which "
            "measures with what is there now"
        )


def _search(job: Job) -> dict[str, Any]:
    """Search for the ticket, and measure it before fine-tuning."""
    run, setup, folder = job.run, job.setup, job.folder
    levels = shared_levels(run)
    former = job.former()
    if start_from(folder, job.task["key"], former, levels) and former is not None:
        job.log.say(f"continues from the levels of {former.path.name}")
    try:
        check_network(run.recipe, setup.model, density=run.density, on_collapse=run.on_collapse)
        with job.saved() as (listeners, checkpointer):
            ticket = search(
                run.recipe,
                setup.model,
                setup.data,
                density=run.density,
                plan=run.search,
                seed=run.seed,
                runtime=run.runtime,
                on_collapse=run.on_collapse,
                observers=listeners,
                fabric=setup.fabric,
                on_ticket=keeper(folder, levels, checkpointer),
                checkpointer=checkpointer,
                task=run.task,
            )
    except CollapseError as error:
        return {"collapse": _short(error), "curve": curve_in(folder.metrics, "search")}
    ticket = setup.label(ticket, run.plugins)
    if job.first:
        ticket.save(folder.ticket, within=job.store.path)
    return {
        "before": setup.measure(ticket),
        "kept": ticket.kept,
        "prunable": ticket.prunable,
        "alive": ticket.info.alive,
        "layers": [(layer.name, layer.kept, layer.prunable) for layer in ticket.layers],
        "epochs": ticket.info.epochs,
        "curve": curve_in(folder.metrics, "search"),
        "bound": bound_in(folder.metrics),
        "collapse": collapse_in(folder.metrics),
        "ticket": ticket.digest(),
    }


def _finetune(job: Job, ticket: Ticket | None = None) -> dict[str, Any]:
    """Fine-tune a ticket, by default that of the search, and measure it."""
    ticket = ticket or job.ticket()
    with job.saved() as (listeners, checkpointer):
        plan, seed = job.run.finetune, job.run.seed
        trained = job.setup.finetune(ticket, plan, seed, listeners, checkpointer)
    return {
        "after": job.setup.measure(trained),
        "epochs": job.run.finetune.epochs,
        "curve": curve_in(job.folder.metrics, "finetune"),
    }


def _check(job: Job) -> dict[str, Any]:
    """Make and try a control of the ticket, or measure the ticket; or say why that fails."""
    name, ticket = job.task["check"], job.ticket()
    context = run_context(job.run, job.setup, job.registry, [job.log]).tolerating_collapse()
    [check] = make_checks(job.registry, [name]).values()
    try:
        check.check_fit(context)
        if isinstance(check, Measurement):
            return {"numbers": measured_numbers(check, ticket, context)}
        control = kept_control(job, ticket, partial(fair_control, check, ticket, context))
    except (StorageError, DataError):
        raise  # the next run may have more luck
    except GemkitError as error:
        if shortage(error):  # it says nothing about the control
            raise
        return {"unmade": _short(error)}
    about = {"kept": control.kept, "prunable": control.prunable}
    return about | {"before": job.setup.measure(control)} | _finetune(job, control)


_KINDS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "search": _search,
    "finetune": _finetune,
    "check": _check,
}


def _failed(store: StageStore, name: str, log: Log, error: Exception) -> dict[str, Any]:
    """Record why a stage failed; a disk that is full must not hide it."""
    expected = isinstance(error, GemkitError)
    reason = str(error) if expected else fault_of(error) or f"{type(error).__name__}: {error}"
    log.say(f"error: {reason if expected else traceback.format_exc()}")
    try:
        store.write_failure(name, reason)
    except (OSError, StorageError) as second:
        reason = f"{reason} (and that cannot be recorded: {second})"
    return {"state": "failed", "reason": reason}


def _short(error: GemkitError) -> str:
    return str(error)[:4000]


@cache
def _registry(files: tuple[str, ...]) -> Registry:
    """Load plugins once in a process."""
    return load_plugins(files=files)
