"""Progress of a phase on stderr: a bar on a terminal, else a few lines."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from lightning_fabric import Fabric
from rich.console import Console

from gemkit.cli.command import echo
from gemkit.core.errors import GemkitError, Stopped
from gemkit.core.events import Collapsed, EpochEnded, Event, Noted, PhaseStarted
from gemkit.report.progress import LABELS, Bars, columns, metrics, warning
from gemkit.training.loop import Listener

_LINES = 10
"""The most lines that a phase prints."""


@contextmanager
def progress() -> Iterator[Listener]:
    """Yield a listener that shows the progress of a phase."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        with columns(console) as bars:
            yield Bars(bars)
    else:
        yield Lines()


class Lines:
    """Print about ten lines for each phase."""

    def __init__(self) -> None:
        self.epochs = 0

    def __call__(self, event: Event) -> None:
        """Print a line after each tenth of the epochs, and every warning."""
        if isinstance(event, PhaseStarted):
            self.epochs = event.epochs
        elif isinstance(event, Collapsed | Noted):
            echo(warning(event), err=True)
        elif isinstance(event, EpochEnded) and self._is_due(event.epoch):
            left = event.seconds / event.epoch * (self.epochs - event.epoch)
            echo(
                f"{LABELS[event.phase]} {event.epoch}/{self.epochs}  {metrics(event)}  "
                f"{left:.0f} s left",
                err=True,
            )

    def _is_due(self, epoch: int) -> bool:
        """Return whether this epoch completes another tenth of them."""
        return epoch * _LINES // self.epochs > (epoch - 1) * _LINES // self.epochs


class Warnings:
    """Print warnings, but not the same one twice in a row.

    A control with a hundred freezes may lose the same layers a hundred times.
    """

    def __init__(self) -> None:
        self.last: object = None

    def __call__(self, event: Event) -> None:
        """Print the warning of an event, unless it repeats the last one."""
        if isinstance(event, Collapsed | Noted):
            subject = event.layers if isinstance(event, Collapsed) else event.message
            if subject != self.last:
                echo(warning(event), err=True)
            self.last = subject


@contextmanager
def only_first_prints(fabric: Fabric) -> Iterator[Path | None]:
    """Silence every process but the first, and yield a temporary folder to the others.

    All processes do the same work, but only the first may print and keep files.
    """
    if fabric.is_global_zero:
        yield None
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        Path(os.devnull).open("w") as devnull,
        redirect_stdout(devnull),
        redirect_stderr(devnull),
    ):
        try:
            yield Path(folder)
        except (GemkitError, Stopped):
            sys.exit(2)  # the first process prints the error
        sys.exit(0)  # the first process prints the answer
