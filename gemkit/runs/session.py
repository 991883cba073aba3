"""One process at work on a run, which others may have begun."""

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

from gemkit import engine
from gemkit.errors import GemkitError, Stopped, StorageError
from gemkit.keeping import DiskKeeper
from gemkit.lab import Lab
from gemkit.metrics import Log, Metrics
from gemkit.models.custom import model_data
from gemkit.phase import Listener
from gemkit.rundir import RunDir
from gemkit.runs import signals
from gemkit.runs.bench import Bench
from gemkit.runs.checking import Checks, check_run
from gemkit.runs.failures import explained
from gemkit.runs.job import Job
from gemkit.runs.levels import Ladder
from gemkit.runs.progress import Progress
from gemkit.runs.specs import needs_repeating, title_of
from gemkit.stateful import State
from gemkit.ticket import Ticket


class Stopwatch:
    """How long a run has worked, in all its sessions together."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.search = 0.0

    @property
    def seconds(self) -> float:
        """The time since the beginning, without the time between sessions."""
        return time.perf_counter() - self._began

    def lap(self) -> None:
        """Note that the search is done."""
        self.search = self.seconds

    def state(self) -> State:
        """Tell both times."""
        return {"seconds": self.seconds, "search": self.search}

    def restore_(self, state: State) -> None:
        """Go on from the times of a stopwatch whose state this is."""
        self._began = time.perf_counter() - float(state["seconds"])
        self.search = float(state["search"])


class Session:
    """One process at work on a run; there may have been others before."""

    def __init__(self, job: Job, bench: Bench, run_dir: RunDir, progress: Progress) -> None:
        self.job = job
        self.bench = bench
        self.run_dir = run_dir
        self.progress = progress
        self.log = Log(run_dir.log)

    def result(self, listeners: Sequence[Listener]) -> dict[str, Any]:
        """Return the outcome, which is there already or comes about now."""
        here = (self.run_dir.checkpoints, self.run_dir.result())
        place, known = self.bench.fabric.broadcast(here)
        if known is not None:
            return dict(known)
        with (
            self._saying_what_remains(),
            explained(self._saved()),
            signals.noticed(self.progress.stopping) as ear,
            Metrics(self.run_dir.metrics) as metrics,
        ):
            ladder = Ladder(self.run_dir, partial(self.bench.label, versions=self.job.plugins))
            watch = Stopwatch()
            first = self.bench.fabric.is_global_zero
            keeper = DiskKeeper(
                place,
                fingerprint(self.job),
                minutes=self.job.settings.checkpoint_minutes,
                beside={"metrics": metrics, "ladder": ladder, "watch": watch} if first else {},
                asked_to_stop=ear.asked_to_stop,
                told=self._warn,
                writes=first,
            )
            if keeper.phase is None:
                metrics.clear()
            self.log.say(f"resumed in {keeper.phase}" if keeper.phase else "started")
            heard_by: list[Listener] = [metrics, self.log, *listeners]
            data = self._carry_out(heard_by, ladder, watch, keeper)
            self.run_dir.write_result(data)
            signal = self.bench.fabric.broadcast(ear.heard)
            if signal is not None and self.job.settings.checks:  # else there is nothing to stop
                raise Stopped(signal)
        self.log.say("done")
        return data

    def checked(self, data: Mapping[str, Any], controls: Checks, lab: Lab) -> dict[str, Any]:
        """Compare the ticket with its controls."""
        with self._saying_what_remains(), explained(self._saved()), signals.raised():
            return check_run(self.job, self.run_dir, data, controls, lab, self.progress)

    def _carry_out(
        self, listeners: Sequence[Listener], ladder: Ladder, watch: Stopwatch, keeper: DiskKeeper
    ) -> dict[str, Any]:
        """Search, measure, fine-tune, measure; every ticket is on disk as soon as it exists."""
        job, bench, run_dir = self.job, self.bench, self.run_dir
        if keeper.phase == "finetune":
            ticket = Ticket.load(run_dir.ticket, within=run_dir.path)
        else:
            ticket = self._search([ladder.listen, *listeners], ladder.add, keeper)
            ticket.save(run_dir.ticket)
            watch.lap()
        before = bench.measure(ticket)
        self.progress.found(ticket, before, ladder.rungs)
        with self.progress.training() as show:
            heard_by = [show, *listeners]
            trained = bench.finetune(ticket, job.finetune, job.seed, heard_by, keeper)
        trained.save(run_dir.finetuned)
        after = bench.measure(trained)
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
            "seconds": round(watch.seconds, 3),
            "seconds_search": round(watch.search, 3),
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
        self,
        listeners: Sequence[Listener],
        on_ticket: Callable[[Ticket], None],
        keeper: DiskKeeper,
    ) -> Ticket:
        """Find the ticket and say what it belongs to."""
        job, bench = self.job, self.bench
        with self.progress.training() as show:
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
                keeper=keeper,
            )
        return bench.label(ticket, job.plugins)

    def _again(self) -> str:
        """Say what to type for the run to go on."""
        return shlex.join(resume_words(self.run_dir.path, self.job))

    def _saved(self) -> str:
        return f"the run is saved up to its last checkpoint: go on with `{self._again()}`"

    def _warn(self, words: str) -> None:
        self.log.say(f"warning: {words}")
        self.progress.warn(words)

    @contextmanager
    def _saying_what_remains(self) -> Iterator[None]:
        """Add to an error, or to a signal's effect, what the run leaves behind and how it goes on.

        Python files are named here, and only given again by somebody who trusts them are they run.
        """
        try:
            yield
        except GemkitError as error:
            self.log.say(f"error: {error}")
            remains = ", ".join(self.run_dir.contents())
            ticket = "" if self.run_dir.ticket.exists() else "; there is no ticket"
            anew = "" if self.run_dir.is_bare() else "; for other options give another --out"
            words = f"{error}\n{self.run_dir.path} keeps {remains}{ticket}{anew}"
            raise type(error)(words) from error
        except Stopped as stop:
            words = f"stopped by {Signals(stop.signal).name}; go on with: {self._again()}"
            self.log.say(words)
            raise Stopped(stop.signal, words) from stop
        except Exception as error:
            with suppress(OSError, StorageError):  # a full disk must not hide what went wrong
                self.log.say(f"error: {type(error).__name__}: {error}")
                error.add_note(f"{self.run_dir.path} keeps {', '.join(self.run_dir.contents())}")
            raise


def fingerprint(job: Job) -> str:
    """Return what tells the checkpoints of this job from those of any other."""
    return hashlib.sha256(json.dumps(job.to_data(), sort_keys=True).encode()).hexdigest()


def resume_words(folder: Path, job: Job) -> list[str]:
    """Return what to type to resume a run; some networks have to be named again."""
    said = model_data(job.model)
    words = ["gemkit", "resume", str(folder)]
    words += [word for file in job.settings.plugins for word in ("--plugin", file)]
    return words + (["--model", title_of(said)] if needs_repeating(said) else [])
