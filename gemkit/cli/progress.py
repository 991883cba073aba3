"""Progress of a phase on stderr: a bar on a terminal, else a few lines."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from lightning_fabric import Fabric
from rich.console import Console

from gemkit.cli.command import echo
from gemkit.core.errors import GemkitError, Stopped
from gemkit.core.events import (
    Collapsed,
    EpochEnded,
    Event,
    Froze,
    Noted,
    PhaseStarted,
    Scoring,
)
from gemkit.core.memory import memory_explained
from gemkit.plugins.faults import FAULT, fault_of
from gemkit.report.progress import LABELS, Bars, Slow, columns, metrics, warning
from gemkit.training.loop import Listener
from gemkit.training.processes import is_loss, report, report_own

_LINES = 10
"""The most lines that a phase prints, besides those of long scoring."""


@contextmanager
def progress(*, many: bool = False) -> Iterator[Listener]:
    """Yield a listener that shows the progress of a phase, or of `many` phases in little space."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        with columns(console, many=many) as bars:
            yield Bars(bars, many=many)
    else:
        yield Slow(echo_line) if many else Lines()


def echo_line(text: str) -> None:
    """Print a line on stderr."""
    echo(text, err=True)


class Lines:
    """Print about ten lines for each phase."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.epochs = 0
        self.freeze = self.freezes = 0
        self._now = now
        self._began = now()
        self._before = 0
        self._slow = Slow(echo_line, now)

    def __call__(self, event: Event) -> None:
        """Print a line after each tenth of the epochs or freezes, and every warning."""
        if isinstance(event, PhaseStarted):
            self.epochs, self.freezes, self._began = event.epochs, 0, self._now()
        elif isinstance(event, Scoring):
            self._slow(event)
            if not self.freezes:
                self._before = event.freeze - 1
            self.freeze, self.freezes = event.freeze, event.freezes
        elif isinstance(event, Froze) and not self.epochs and self.freezes > 1:
            self._froze(event)
        elif isinstance(event, Collapsed | Noted):
            echo(warning(event), err=True)
        elif isinstance(event, EpochEnded) and _is_due(event.epoch, self.epochs):
            left = event.seconds / event.epoch * (self.epochs - event.epoch)
            echo(
                f"{LABELS[event.phase]} {event.epoch}/{self.epochs}  {metrics(event)}  "
                f"{left:.0f} s left",
                err=True,
            )

    def _froze(self, event: Froze) -> None:
        """Print a line for a freeze of a search that trains nothing."""
        if _is_due(self.freeze, self.freezes):
            self._slow.rest()
            each = (self._now() - self._began) / (self.freeze - self._before)
            left = each * (self.freezes - self.freeze)
            echo(
                f"scoring {self.freeze}/{self.freezes}  density "
                f"{event.alive / max(1, event.prunable):.3f}  {left:.0f} s left",
                err=True,
            )


def _is_due(number: int, count: int) -> bool:
    """Return whether this epoch or freeze completes another tenth of them."""
    return number * _LINES // count > (number - 1) * _LINES // count


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
            with memory_explained():
                yield Path(folder)
        except Stopped:
            sys.exit(0)  # the first process may still be saving
        except GemkitError as error:
            report_own(error)
            sys.exit(2)  # the first process prints an error that all have
        except Exception as error:
            if is_loss(error):  # the first process prints that, unless it is the one that is gone
                sys.exit(2)
            if (fault := fault_of(error)) is None:
                raise
            report(fault)
            sys.exit(FAULT)
        sys.exit(0)  # the first process prints the answer
