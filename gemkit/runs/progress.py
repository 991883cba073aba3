"""What a run reports while it works, besides the events of training."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning_fabric import Fabric

from gemkit.core.events import Event
from gemkit.runs.resolved import ResolvedRun
from gemkit.sanity.trials import Result
from gemkit.tickets.ticket import Ticket
from gemkit.training.loop import Listener


def ignore(event: Event) -> None:
    """Do nothing with an event."""


class Progress:
    """Report nothing. Override the methods you need; the command line's subclass prints."""

    def starting(self, run: ResolvedRun) -> None:
        """Called once everything is checked, before data are loaded."""

    def started(self, run: ResolvedRun) -> None:
        """Called when the folder is ready, before the search."""

    def note(self, text: str) -> None:
        """Called with a note for the user."""

    def warn(self, text: str) -> None:
        """Called when something went wrong that does not end the run."""

    def stopping(self) -> None:
        """Called from a signal handler, when the run is about to stop at its next step."""

    def found(self, ticket: Ticket, value: float, levels: Sequence[Mapping[str, Any]]) -> None:
        """Called with the ticket, its test metric, and the levels of an iterative search."""

    def measured(self, result: Result, number: int, count: int, seconds: float) -> None:
        """Called after every result of the checks; `seconds` is an estimate of the time left."""

    def training(self) -> AbstractContextManager[Listener]:
        """Return a context that yields a listener for one phase."""
        return nullcontext(ignore)

    def controls(self) -> Listener:
        """Return a listener for the searches and fine-tunings of the checks."""
        return ignore

    def checking(self) -> AbstractContextManager[Listener]:
        """Return a context that yields a listener for the progress of each trial of the checks."""
        return nullcontext(ignore)

    def processes(self, fabric: Fabric) -> AbstractContextManager[object]:
        """Return a context that every process of the run enters."""
        return nullcontext()
