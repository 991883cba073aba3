"""One run of a table: search, fine-tune and check a ticket, and record the results."""

import time
from pathlib import Path
from typing import Any

from gemkit.core.errors import CollapseError, FitError
from gemkit.core.events import EpochEnded, Event
from gemkit.plugins.current import in_use
from gemkit.plugins.loader import load_plugins
from gemkit.plugins.registry import Registry
from gemkit.presets.preset import preset_from
from gemkit.reproduce.table import KEYS
from gemkit.reproduce.tuning import tuned
from gemkit.runs.checking import Checks, make_checks, run_context
from gemkit.runs.machine import host
from gemkit.runs.resolved import ResolvedRun, resolve
from gemkit.runs.setup import set_up
from gemkit.sanity.context import CheckContext
from gemkit.sanity.trials import TICKET, Measured, Unmade, trials
from gemkit.study.store import Row
from gemkit.study.watching import watched
from gemkit.tickets.ticket import Ticket
from gemkit.training.device import make_fabric


def measure(run: Row) -> Row:
    """Carry out a run of the ledger, and return its row with the results.

    `run` also has the paths of data and plugins, which are not recorded. Layers that lose every
    weight are counted; for a network that loses every weight the row has `collapse`, and for a
    method that does not fit the network, `refused`.
    """
    registry = load_plugins(files=[Path(file) for file in run["plugins"]])
    with in_use(registry):
        return _measured(run, registry)


def _measured(run: Row, registry: Registry) -> Row:
    """Carry out a run with these parts."""
    setting = run["setting"] | {"help": "a run", "seed": run["seed"]}
    resolved = resolve(registry, preset_from("setting", setting))
    folder = run["data_dir"] and Path(run["data_dir"])
    fabric = make_fabric(resolved.runtime)
    setup = set_up(
        resolved.model, resolved.dataset, resolved.seed, resolved.runtime, fabric, data_dir=folder
    )
    resolved, curves = resolved.with_learning_rates(setup.data), Curves()
    row = {key: run[key] for key in KEYS if key in run} | _about(resolved, str(fabric.device))
    began, started = time.perf_counter(), time.process_time()
    try:
        watch = watched(f"{resolved.recipe.pruner} at density {resolved.density:g}")
        resolved, epochs = tuned(resolved, setup, run.get("tuning", ()), folder, [watch])
        context = run_context(resolved, setup, registry, [watch, curves]).tolerating_collapse()
        ticket = context.search()
    except CollapseError as error:
        return row | {"collapse": str(error)}
    except FitError as error:
        return row | {"refused": str(error)}
    row |= _about(resolved, str(fabric.device)) | _kept(ticket, epochs)
    row["cpu_seconds_search"] = round(time.process_time() - started, 3)
    row |= _trials(ticket, make_checks(registry, run["checks"]), context, curves)
    return row | {
        "cpu_seconds": round(time.process_time() - started, 3),
        "seconds": round(time.perf_counter() - began, 3),
    }


def _trials(ticket: Ticket, checks: Checks, context: CheckContext, curves: "Curves") -> Row:
    """Fine-tune the ticket and its controls."""
    found: Row = {"controls": {}, "unmade": {}}
    for trial in trials(ticket, checks, [context.seed], context):
        if isinstance(trial, Unmade):
            found["unmade"][trial.check] = trial.reason
        elif isinstance(trial, Measured):
            found.setdefault("measurements", {})[trial.check] = trial.numbers
        elif trial.check == TICKET:
            found |= {"before": trial.before, "after": trial.after, "curves": curves.data()}
        else:
            found["controls"][trial.check] = {"before": trial.before, "after": trial.after}
    return found


class Curves:
    """Record validation accuracy and density after every epoch."""

    def __init__(self) -> None:
        self.epochs: list[EpochEnded] = []

    def __call__(self, event: Event) -> None:
        """Record the end of an epoch."""
        if isinstance(event, EpochEnded):
            self.epochs.append(event)

    def data(self) -> dict[str, list[list[float]]]:
        """Return (accuracy, density) after every epoch of both phases."""
        return {
            phase: [
                [round(epoch.accuracy, 4), round(epoch.density, 6)]
                for epoch in self.epochs
                if epoch.phase == phase
            ]
            for phase in ("search", "finetune")
        }


def _about(resolved: ResolvedRun, device: str) -> dict[str, Any]:
    """Return the configuration, with every default written out, the versions and the machine."""
    known = resolved.to_data()
    return {
        "recipe": known["recipe"],
        "model": known["model"],
        "search": known["search"],
        "finetune": known["finetune"],
        "versions": known["versions"],
        "host": host() | {"device": device},
    }


def _kept(ticket: Ticket, tuning_epochs: int) -> dict[str, Any]:
    """Return what the ticket keeps of each layer, and the epochs of the search."""
    return {
        "kept": ticket.kept,
        "prunable": ticket.prunable,
        "alive": ticket.info.alive,
        "empty_layers": sum(layer.kept == 0 for layer in ticket.layers),
        "layers": [[layer.name, layer.kept, layer.prunable] for layer in ticket.layers],
        "search_epochs": ticket.info.epochs + tuning_epochs,
    }
