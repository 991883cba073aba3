"""What a run reports while it works, beside the events of its training."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning_fabric import Fabric

from gemkit.checks import Trial, Unmade
from gemkit.events import Event
from gemkit.phase import Listener
from gemkit.runs.job import Job
from gemkit.ticket import Ticket


def ignore(event: Event) -> None:
    """Do nothing with an event."""


class Progress:
    """Reports nothing; override what somebody should see. The command line's prints it."""

    def starting(self, job: Job) -> None:
        """Called once everything is checked, before data are loaded."""

    def started(self, job: Job) -> None:
        """Called when the folder is ready, before the search."""

    def note(self, text: str) -> None:
        """Called with a sentence that the user should know."""

    def warn(self, text: str) -> None:
        """Called with a sentence about something that went wrong without ending the run."""

    def stopping(self) -> None:
        """Called from a signal's handler, when the run is going to stop at the next step."""

    def found(self, ticket: Ticket, accuracy: float, levels: Sequence[Mapping[str, Any]]) -> None:
        """Called with the ticket, its test accuracy, and the tickets saved on the way."""

    def measured(self, trial: Trial | Unmade, number: int, count: int, seconds: float) -> None:
        """Called after every trial of the checks; `seconds` is an estimate of the time left."""

    def training(self) -> AbstractContextManager[Listener]:
        """Return a listener for one phase; it is entered when the phase begins."""
        return nullcontext(ignore)

    def controls(self) -> Listener:
        """Return a listener for the many searches and trainings of the checks."""
        return ignore

    def processes(self, fabric: Fabric) -> AbstractContextManager[object]:
        """Return a context for the work, entered by every process of the run."""
        return nullcontext()
