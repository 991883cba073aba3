"""A stage at work: its run and its folder, what saves it, and the ticket that it needs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from gemkit.core.errors import OptionError, StorageError
from gemkit.data.fingerprint import check_same
from gemkit.plugins.registry import Registry
from gemkit.runs import signals
from gemkit.runs.directory import RunDir
from gemkit.runs.metrics import Log, Metrics
from gemkit.runs.resolved import ResolvedRun
from gemkit.runs.setup import Setup
from gemkit.study.meter import Meter
from gemkit.study.stage_store import StageResult, StageStore
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpointer import DiskCheckpointer
from gemkit.training.loop import Listener


@dataclass(frozen=True)
class Job:
    """A stage at work: its run, data and network, its folder, and what saves and records it.

    Of several processes only the `first` writes.
    """

    task: Mapping[str, Any]
    run: ResolvedRun
    setup: Setup
    registry: Registry
    store: StageStore
    folder: RunDir
    meter: Meter
    log: Log
    first: bool = True

    @contextmanager
    def saved(self) -> Iterator[tuple[list[Listener], DiskCheckpointer]]:
        """Yield listeners and a checkpointer for a phase; a signal stops it at its next step."""
        folder = self.setup.fabric.broadcast(self.folder.checkpoints)  # that of the first process
        with signals.deferred() as stop, Metrics(self.folder.metrics, self.log.say) as metrics:
            checkpointer = DiskCheckpointer(
                folder,
                self.task["key"],
                minutes=self.run.settings.checkpoint_minutes,
                beside={"metrics": metrics, "meter": self.meter} if self.first else {},
                asked_to_stop=stop.requested,
                warn=self.log.say,
                writes=self.first,
            )
            if checkpointer.phase is None:
                metrics.clear()
            self.log.say(f"resumed in {checkpointer.phase}" if checkpointer.phase else "began")
            yield [metrics, self.log], checkpointer

    def former(self) -> RunDir | None:
        """Return the folder of the search that this one comes after, if it can continue it."""
        name = self.task.get("after")
        with suppress(StorageError):
            if name and (known := self.store.result(name)) and self._is_of_this_device(known):
                return self.store.folder(name)
        return None

    def _is_of_this_device(self, known: StageResult) -> bool:
        """Return whether a stage ran on the same kind of device; `auto` has one key for all."""
        return known.device.partition(":")[0] in ("", self.setup.fabric.device.type)

    def ticket(self) -> Ticket:
        """Load the ticket of the search that this stage needs, found on the same data."""
        name = f"search-{self.task['search']}"
        known, folder = self.store.result(name), self.store.folder(name)
        if not folder.ticket.exists():
            raise StorageError(
                f"{folder.path} has lost its ticket; remove that folder to search again"
            )
        ticket = Ticket.load(folder.ticket, within=self.store.path)
        if known is None or known.ticket != ticket.digest():
            raise StorageError(
                f"the ticket in {folder.path} is not the one its result was "
                "measured with; remove that folder to search again"
            )
        if not self._is_of_this_device(known):
            raise OptionError(
                f"its search ran on '{known.device}', and here there is "
                f"'{self.setup.fabric.device}': set --device, and give another --out"
            )
        check_same(
            ticket.info.data,
            self.setup.data.fingerprint,
            "the ticket was found on",
            "restore them, or start another study",
        )
        return ticket
