"""One run of a table: search, fine-tuning and controls, measured, with all it takes to judge."""

import time
from pathlib import Path
from typing import Any

from gemkit.checks import TICKET, Unmade, trials
from gemkit.errors import CollapseError
from gemkit.events import EpochEnded, Event
from gemkit.plugins import load_plugins
from gemkit.preset import preset_from
from gemkit.report.host import host
from gemkit.report.ledger import Row
from gemkit.reproduce.table import KEYS
from gemkit.runs.bench import set_up
from gemkit.runs.checking import lab_of, make_checks
from gemkit.runs.job import Job, job_of
from gemkit.ticket import Ticket
from gemkit.training import make_fabric


def measure(run: Row) -> Row:
    """Carry out what a row of the ledger says, and add what comes of it.

    `run` also says where images and plugins lie, which stays out of the ledger. Layers that lose
    every weight are counted; a network that keeps no weight at all says so.
    """
    registry = load_plugins(files=[Path(file) for file in run["plugins"]])
    setting = run["setting"] | {"help": "a run", "seed": run["seed"]}
    job = job_of(registry, preset_from("setting", setting))
    folder = run["data_dir"] and Path(run["data_dir"])
    fabric = make_fabric(job.runtime)
    bench = set_up(job.model, job.dataset, job.seed, job.runtime, fabric, data_dir=folder)
    job, curves = job.decided(bench.data), Curves()
    lab = lab_of(job, bench, registry, [curves]).never_stopping()
    told = {key: run[key] for key in KEYS} | _about(job, str(fabric.device))
    began, started = time.perf_counter(), time.process_time()
    try:
        ticket = lab.search()
    except CollapseError as error:
        return told | {"collapse": str(error)}
    found: Row = _kept(ticket) | {
        "cpu_seconds_search": round(time.process_time() - started, 3),
        "controls": {},
        "unmade": {},
    }
    checks = make_checks(registry, run["checks"])
    for trial in trials(ticket, checks, [job.seed], lab, job.finetune):
        if isinstance(trial, Unmade):
            found["unmade"][trial.check] = trial.reason
        elif trial.check == TICKET:
            found |= {"before": trial.before, "after": trial.after, "curves": curves.told()}
        else:
            found["controls"][trial.check] = {"before": trial.before, "after": trial.after}
    return (
        told
        | found
        | {
            "cpu_seconds": round(time.process_time() - started, 3),
            "seconds": round(time.perf_counter() - began, 3),
        }
    )


class Curves:
    """Hears how validation accuracy and density develop, epoch by epoch."""

    def __init__(self) -> None:
        self.epochs: list[EpochEnded] = []

    def __call__(self, event: Event) -> None:
        """Note the end of an epoch."""
        if isinstance(event, EpochEnded):
            self.epochs.append(event)

    def told(self) -> dict[str, list[list[float]]]:
        """Return (accuracy, density) after every epoch of both phases."""
        return {
            phase: [
                [round(epoch.accuracy, 4), round(epoch.density, 6)]
                for epoch in self.epochs
                if epoch.phase == phase
            ]
            for phase in ("search", "finetune")
        }


def _about(job: Job, device: str) -> dict[str, Any]:
    """Say what was run, every default written out, on which machine."""
    known = job.to_data()
    return {
        "recipe": known["recipe"],
        "model": known["model"],
        "search": known["search"],
        "finetune": known["finetune"],
        "versions": known["versions"],
        "host": host() | {"device": device},
    }


def _kept(ticket: Ticket) -> dict[str, Any]:
    """Say what the ticket keeps, and what the search took."""
    return {
        "kept": ticket.kept,
        "prunable": ticket.prunable,
        "alive": ticket.info.alive,
        "empty_layers": sum(layer.kept == 0 for layer in ticket.layers),
        "layers": [[layer.name, layer.kept, layer.prunable] for layer in ticket.layers],
        "search_epochs": ticket.info.epochs,
    }
