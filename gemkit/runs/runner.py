"""Carry out a run in this process: search, measure, fine-tune, measure, with checkpoints."""

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

from gemkit.core.errors import GemkitError, Stopped, StorageError
from gemkit.core.state import StateDict
from gemkit.models.custom import model_data
from gemkit.plugins.faults import exits_are_faults
from gemkit.pruning.search import search
from gemkit.runs import signals
from gemkit.runs.checking import Checks, check_run
from gemkit.runs.directory import RunDir
from gemkit.runs.failures import explained
from gemkit.runs.levels import Levels
from gemkit.runs.lost import has_lost_checkpoints, load_found, lost_levels
from gemkit.runs.metrics import Log, Metrics
from gemkit.runs.progress import Progress
from gemkit.runs.resolved import ResolvedRun
from gemkit.runs.result import measured
from gemkit.runs.setup import Setup
from gemkit.runs.specs import model_argument, needs_confirmation
from gemkit.sanity.context import CheckContext
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpoint import CheckpointDir
from gemkit.training.checkpointer import DiskCheckpointer
from gemkit.training.loop import Listener


class Stopwatch:
    """Measure how long a run has worked, all its processes added up."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.search = 0.0

    @property
    def seconds(self) -> float:
        """The time since the start, without the time between processes."""
        return time.perf_counter() - self._began

    def end_search(self) -> None:
        """Record the time that the search took."""
        self.search = self.seconds

    def state_dict(self) -> StateDict:
        """Return both times."""
        return {"seconds": self.seconds, "search": self.search}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from the times in a state."""
        self._began = time.perf_counter() - float(state["seconds"])
        self.search = float(state["search"])


class Runner:
    """Carry out a run in a folder, from the start or from its last checkpoint."""

    def __init__(self, run: ResolvedRun, setup: Setup, run_dir: RunDir, progress: Progress) -> None:
        self.run = run
        self.setup = setup
        self.run_dir = run_dir
        self.progress = progress
        self.log = Log(run_dir.log)

    def result(self, listeners: Sequence[Listener]) -> dict[str, Any]:
        """Return the result: the one in the folder, or else that of running now."""
        here = (self.run_dir.checkpoints, self.run_dir.result())
        folder, known = self.setup.fabric.broadcast(here)
        if known is not None:
            return dict(known)
        with (
            self._explaining_errors(),
            explained(self._saved),
            signals.deferred(self.progress.stopping) as stop,
            Metrics(self.run_dir.metrics, self._warn) as metrics,
            exits_are_faults(),
        ):
            label = partial(self.setup.label, versions=self.run.plugins)
            levels = Levels(self.run_dir, label, self.run.task.metric.name)
            watch = Stopwatch()
            first = self.setup.fabric.is_global_zero
            data = self.run.to_data()
            checkpointer = DiskCheckpointer(
                folder,
                fingerprint(data),
                formerly=[fingerprint(before_lean(data))],
                minutes=self.run.settings.checkpoint_minutes,
                beside={"metrics": metrics, "ladder": levels, "watch": watch} if first else {},
                asked_to_stop=stop.requested,
                warn=self._warn,
                writes=first,
            )
            phase = checkpointer.phase
            if phase is None:
                if has_lost_checkpoints(self.run_dir):
                    self._warn("there is no checkpoint of what this run did, so it starts again")
                metrics.clear()
            elif lost := lost_levels(self.run_dir, levels.data):
                self._warn(lost)
            self.log.say(f"resumed in {phase}" if phase else "started")
            result = self._phases([metrics, self.log, *listeners], levels, watch, checkpointer)
            metrics.check_there()
            self.run_dir.write_result(result)
            signal = self.setup.fabric.broadcast(stop.signal)
            if signal is not None:
                raise Stopped(signal)
        self.log.say("done")
        return result

    def check(
        self, data: Mapping[str, Any], controls: Checks, context: CheckContext
    ) -> dict[str, Any]:
        """Compare the ticket with its controls."""
        with (
            self._explaining_errors(),
            explained(self._saved),
            signals.raised(),
            exits_are_faults(),
        ):
            return check_run(self.run, self.run_dir, data, controls, context, self.progress)

    def _phases(
        self,
        listeners: Sequence[Listener],
        levels: Levels,
        watch: Stopwatch,
        checkpointer: DiskCheckpointer,
    ) -> dict[str, Any]:
        """Search, measure, fine-tune, measure; save every ticket as soon as it exists."""
        run, setup, run_dir = self.run, self.setup, self.run_dir
        if checkpointer.phase == "finetune":
            shared = setup.fabric.broadcast(run_dir.path)  # the others have a folder of their own
            ticket = load_found(RunDir(shared))
        else:
            ticket = self._search([levels.listen, *listeners], levels.add, checkpointer)
            ticket.save(run_dir.ticket)
            watch.end_search()
        before = setup.measure(ticket)
        self.progress.found(ticket, before, levels.data)
        with self.progress.training() as show:
            trained = setup.finetune(
                ticket, run.finetune, run.seed, [show, *listeners], checkpointer
            )
        trained.save(run_dir.finetuned)
        after = setup.measure(trained)
        return {
            "pruner": run.recipe.pruner,
            "density_target": ticket.info.density_target,
            "density": ticket.density,
            "kept": ticket.kept,
            "prunable": ticket.prunable,
            "alive": ticket.info.alive,
            **measured(run.task.metric, before, after),
            "seed": run.seed,
            "epochs": ticket.info.epochs,
            "finetune_epochs": run.finetune.epochs,
            "seconds": round(watch.seconds, 3),
            "seconds_search": round(watch.search, 3),
            "ticket": str(run_dir.ticket),
            "finetuned": str(run_dir.finetuned),
            "ladder": levels.data,
            "run_dir": str(run_dir.path),
            "device": str(setup.fabric.device),
            "recipe": ticket.info.recipe,
            "model": ticket.info.model,
            "dataset": ticket.info.dataset,
            "versions": ticket.info.versions,
            "layers": [layer._asdict() for layer in ticket.layers],
        }

    def _search(
        self,
        listeners: Sequence[Listener],
        on_ticket: Callable[[Ticket], None],
        checkpointer: DiskCheckpointer,
    ) -> Ticket:
        """Search for the ticket, and record its network, data and plugins in it."""
        run, setup = self.run, self.setup
        with self.progress.training() as show:
            ticket = search(
                run.recipe,
                setup.model,
                setup.data,
                density=run.density,
                plan=run.search,
                seed=run.seed,
                runtime=run.runtime,
                on_collapse=run.on_collapse,
                observers=[show, *listeners],
                fabric=setup.fabric,
                on_ticket=on_ticket,
                checkpointer=checkpointer,
                task=run.task,
            )
        return setup.label(ticket, run.plugins)

    def _resume_command(self) -> str:
        return shlex.join(resume_words(self.run_dir.path, self.run))

    def _after_stop(self) -> str:
        """Say how to resume, or, if only the caller is left to stop, where the result is."""
        if self.run.settings.checks or not self.run_dir.has_result():
            return f"resume with: {self._resume_command()}"
        self.run_dir.finish()
        return f"the run is done: `{self._resume_command()}` prints its result"

    def _saved(self) -> str:
        """Say what the folder keeps, and how to resume; only the first process has the folder."""
        if not self.setup.fabric.is_global_zero:
            return ""
        command = self._resume_command()
        with suppress(OSError, StorageError):
            if self.run_dir.has_result():
                return f"the result of the run is saved: resume its checks with `{command}`"
            if not CheckpointDir(self.run_dir.checkpoints).files():
                return f"the run has no checkpoint yet: `{command}` starts it from the beginning"
        return f"the run is saved up to its last checkpoint: resume it with `{command}`"

    def _resumable(self, error: GemkitError) -> str:
        """Return the message of an error; if the machine caused it, it says how to resume."""
        said = not isinstance(error.__cause__, OSError) or self._resume_command() in str(error)
        return "; ".join(filter(None, [str(error), "" if said else self._saved()]))

    def _warn(self, words: str) -> None:
        self.log.say(f"warning: {words}")
        self.progress.warn(words)

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        """Log an error or a signal, and add to it what the folder holds and how to resume."""
        try:
            yield
        except GemkitError as error:
            self.log.say(f"error: {error}")
            files = ", ".join(self.run_dir.contents())
            ticket = "" if self.run_dir.ticket.exists() else "; there is no ticket"
            other = (
                "" if self.run_dir.has_nothing_saved() else "; for other options give another --out"
            )
            words = f"{self._resumable(error)}\n{self.run_dir.path} keeps {files}{ticket}{other}"
            raise type(error)(words) from error
        except Stopped as stop:
            words = f"stopped by {Signals(stop.signal).name}; {self._after_stop()}"
            self.log.say(words)
            raise Stopped(stop.signal, words) from stop
        except Exception as error:
            with suppress(OSError, StorageError):  # a full disk must not hide what went wrong
                self.log.say(f"error: {type(error).__name__}: {error}")
                if self.setup.fabric.is_global_zero:  # the folder of another one is temporary
                    keeps = ", ".join(self.run_dir.contents())
                    error.add_note(f"{self.run_dir.path} keeps {keeps}; {self._saved()}")
            raise


def fingerprint(data: Mapping[str, Any]) -> str:
    """Return a hash of a run's data: it tells its checkpoints from those of any other run."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def before_lean(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's data as it was while `Runtime` had the setting `lean`."""
    return {**data, "runtime": {**data["runtime"], "lean": False}}


def resume_words(folder: Path, run: ResolvedRun) -> list[str]:
    """Return the command that resumes a run; some networks and all plugin files are named again."""
    recorded = model_data(run.model)
    words = ["gemkit", "resume", str(folder)]
    words += [word for file in run.settings.plugins for word in ("--plugin", file)]
    return words + (["--model", model_argument(recorded)] if needs_confirmation(recorded) else [])
