"""The driver of a study: it submits stages whose inputs are ready, until none is missing."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from signal import Signals
from typing import Any

from gemkit.core.errors import OptionError, Stopped, StorageError
from gemkit.core.text import number_of
from gemkit.runs import signals
from gemkit.study.cell import Cell, CellInfo, Stage
from gemkit.study.stage_store import StageResult, StageStore
from gemkit.study.work import carry_out

_TICK = 0.5
"""Seconds between two looks at the store, for stages that another driver works on."""
_RETRIES = 1
"""How often a stage whose process ended is tried again without a new checkpoint in between."""


@dataclass
class Board:
    """What is known about a study while it runs."""

    name: str
    cells: list[CellInfo]
    stages: Mapping[str, Stage]
    results: dict[str, StageResult] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    jobs: int = 1
    said: Callable[[str], str] = lambda stage: ""
    """The last line in the log of a stage."""

    @classmethod
    def of(cls, name: str, cells: Iterable[Cell], store: StageStore) -> "Board":
        """Read what the store has of some cells; results of other defaults are refused."""
        cells = list(cells)
        stages = {key: stage for cell in cells for key, stage in cell.stages.items()}
        board = cls(name, [cell.info for cell in cells], stages, said=store.last_said)
        for key in store.present() & stages.keys():
            try:
                result = store.result(key)
            except StorageError as error:
                board.failures[key] = str(error)
                continue
            if result is not None:
                store.check_same(stages[key])
                board.add(result)
        return board

    def add(self, result: StageResult) -> None:
        """Add a result, without its curve: a driver may have many thousands of them."""
        self.results[result.stage] = result.model_copy(update={"curve": [], "layers": []})

    def missing(self) -> list[Stage]:
        """List the stages that have no result and can get one."""
        return [
            stage
            for name, stage in self.stages.items()
            if name not in self.results and not self._is_void(stage)
        ]

    def progress(self) -> list[str]:
        """Return how far the stages at work are, in the order of the cells."""
        said = (
            (stage, self.said(name)) for name, stage in self.stages.items() if name in self.running
        )
        return [f"{stage.title}: {words}" for stage, words in said if words]

    def notes(self) -> list[str]:
        """Return what a user should know before the missing stages run, each thing once."""
        concerned: dict[str, list[str]] = defaultdict(list)
        for stage in self.missing():
            if stage.note is not None:
                concerned[stage.note].append(stage.title)
        return [
            f"{titles[0]}{f' and {len(titles) - 1} more' if titles[1:] else ''}: {note}"
            for note, titles in concerned.items()
        ]

    def _is_void(self, stage: Stage) -> bool:
        """Return whether a stage needs a ticket that does not exist: its network collapsed."""
        found = self.results.get(stage.needs or "")
        return found is not None and found.ticket is None


class StudyView:
    """Show nothing. Subclasses show what the driver does."""

    def begin(self, board: Board) -> None:
        """Called once, before anything is submitted."""

    def ended(self, stage: Stage, seconds: float | None) -> None:
        """Called when a stage is done, or has failed; other drivers' stages have no seconds."""

    def tick(self) -> None:
        """Called about twice a second."""

    def note(self, text: str) -> None:
        """Called with a note for the user."""

    def stopping(self) -> None:
        """Called from a signal handler."""

    def close(self) -> None:
        """Called at the end, whatever happened."""


class Driver:
    """Run the missing stages of a board; several drivers may work on one store."""

    def __init__(self, board: Board, store: StageStore, view: StudyView) -> None:
        self.board = board
        self.store = store
        self.view = view
        self._order = {name: place for place, name in enumerate(board.stages)}
        self._ready: list[tuple[int, str]] = []
        self._waiting: dict[str, list[Stage]] = defaultdict(list)
        self._elsewhere: dict[str, Stage] = {}
        self._coming: set[str] = set()
        self._tries: Counter[str] = Counter()
        self._saved: dict[str, int] = {}
        self._ending = False
        self._flying: dict[Future[Any], Stage] = {}

    def run(self, executor: Executor, jobs: int, work: Callable[..., Any] = carry_out) -> None:
        """Run all missing stages; failures are on the board afterwards.

        `work` is called in the processes of the executor with the task of a stage.
        """
        self.board.jobs = jobs
        missing = self.board.missing()
        self._coming = {stage.name for stage in missing}
        for stage in missing:
            self._enqueue(stage)
        self.view.begin(self.board)
        for note in self.board.notes():
            self.view.note(note)
        stop = None
        try:
            with signals.deferred(self.view.stopping) as request:
                while self._flying or self._ready or self._elsewhere:
                    if (stop := request.signal) is not None:
                        break
                    self._submit(executor, jobs, work)
                    self._collect(_TICK)
                    self._look_elsewhere()
                    self.view.tick()
        finally:
            self._ending = True
            executor.shutdown(wait=True, cancel_futures=True)
            self._collect(0)
            self.view.close()
        if stop is not None:
            left = number_of(len(self.board.missing()), "stage")
            raise Stopped(
                stop,
                f"stopped by {Signals(stop).name}; what is finished is kept, {left} left: the same "
                "command continues",
            )

    def _enqueue(self, stage: Stage) -> None:
        """Queue a stage, or let it wait for its search, or for the levels of another."""
        if stage.needs is not None and stage.needs not in self.board.results:
            self._waiting[stage.needs].append(stage)
        elif stage.after is not None and stage.after in self._coming:
            self._waiting[stage.after].append(stage)
        else:
            heappush(self._ready, (self._order[stage.name], stage.name))

    def _submit(self, executor: Executor, most: int, work: Callable[..., Any]) -> None:
        """Submit stages in the order of the cells, as many as can start at once.

        One that waits in the executor could not be overtaken by one of an earlier cell.
        """
        while self._ready and len(self._flying) < most:
            _, name = heappop(self._ready)
            stage = self.board.stages[name]
            task = {**stage.task, "store": str(self.store.path.absolute()), "cwd": str(Path.cwd())}
            self._flying[executor.submit(work, task)] = stage
            self.board.running.add(name)

    def _collect(self, seconds: float) -> None:
        """Wait a moment for stages to end, and record how they did."""
        if not self._flying:
            time.sleep(seconds if self._elsewhere else 0)
            return
        ended, _ = wait(self._flying, timeout=seconds, return_when=FIRST_COMPLETED)
        for future in ended:
            stage = self._flying.pop(future)
            self.board.running.discard(stage.name)
            if not future.cancelled():
                self._record(stage, future)

    def _record(self, stage: Stage, future: "Future[Any]") -> None:
        if (error := future.exception()) is not None:
            self._again(stage, " ".join(str(error).split()) or type(error).__name__)
            return
        outcome = future.result()
        if outcome["state"] == "done":
            self._done(stage, own=True)
        elif outcome["state"] == "busy":
            self._elsewhere[stage.name] = stage
        elif outcome["state"] == "failed":
            self._failed(stage, outcome["reason"])
        else:
            self._again(stage, "its process was asked to stop")

    def _done(self, stage: Stage, *, own: bool) -> None:
        """Read the result, and queue what waited for it."""
        try:
            result = self.store.result(stage.name)
        except StorageError as error:
            self._failed(stage, str(error))
            return
        if result is None:
            self._failed(stage, "its result is gone; something else removes files of this study")
            return
        self.board.add(result)
        self.board.failures.pop(stage.name, None)
        self._release(stage, found=result.ticket is not None)
        self.view.ended(stage, result.seconds if own else None)

    def _failed(self, stage: Stage, reason: str) -> None:
        """Give up on a stage, and on those that need it."""
        self.board.failures[stage.name] = reason
        self._release(stage, found=False)
        self.view.ended(stage, None)

    def _release(self, stage: Stage, *, found: bool) -> None:
        """Queue what waited for a stage; without a ticket, only what can do without it."""
        self._coming.discard(stage.name)
        for waiting in self._waiting.pop(stage.name, []):
            if found or waiting.needs != stage.name:
                self._enqueue(waiting)

    def _again(self, stage: Stage, reason: str) -> None:
        """Try a stage again whose process ended early; it continues from its own checkpoint.

        A job on a cluster may end many times before a long stage is done.
        """
        if self._ending:
            return
        saved = self.store.last_saved(stage.name)
        if saved > self._saved.get(stage.name, 0):
            self._saved[stage.name], self._tries[stage.name] = saved, 0
        self._tries[stage.name] += 1
        if self._tries[stage.name] <= _RETRIES:
            self.view.note(f"{stage.title}: {reason}; it is tried again from its last checkpoint")
            self._enqueue(stage)
            return
        with suppress(OSError, StorageError):
            self.store.write_failure(stage.name, reason)
        self._failed(stage, reason)

    def _look_elsewhere(self) -> None:
        """See whether another driver has finished a stage, or has left it."""
        for name, stage in list(self._elsewhere.items()):
            try:
                if self.store.result(name) is not None:
                    del self._elsewhere[name]
                    self._done(stage, own=False)
                elif not self.store.is_running(name):
                    del self._elsewhere[name]
                    self._enqueue(stage)
            except (StorageError, OptionError) as error:
                self._elsewhere.pop(name, None)
                self._failed(stage, str(error))
