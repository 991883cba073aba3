"""Progress of a phase on stderr: a bar on a terminal, else a few lines."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from lightning_fabric import Fabric
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gemkit.cli.command import echo
from gemkit.core.errors import GemkitError, Stopped
from gemkit.core.events import Collapsed, EpochEnded, Event, Noted, PhaseStarted, StepEnded
from gemkit.core.text import escaped
from gemkit.report.tables import shown
from gemkit.training.loop import Listener

_LINES = 10
"""The most lines that a phase prints."""
_LABELS = {"search": "search", "finetune": "fine-tune"}


@contextmanager
def progress() -> Iterator[Listener]:
    """Yield a listener that shows the progress of a phase."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        with _columns(console) as bars:
            yield Bars(bars)
    else:
        yield Lines()


def _columns(console: Console) -> Progress:
    """Define the columns: phase, bar, epoch, measurements, time left."""
    return Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[epoch]}"),
        TextColumn("{task.fields[metrics]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        expand=True,
    )


class Bars:
    """Show a bar for each phase."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.epochs = 0
        self.task: TaskID | None = None

    def __call__(self, event: Event) -> None:
        """Update the bar and its metrics, or print a warning above it."""
        if isinstance(event, PhaseStarted):
            self._start(event)
        elif isinstance(event, Collapsed | Noted):
            self.bars.console.print(warning(event), style="yellow", soft_wrap=True)
        elif self.task is not None and isinstance(event, StepEnded):
            self.bars.update(self.task, completed=event.step)
        elif self.task is not None and isinstance(event, EpochEnded):
            epoch = f"{event.epoch}/{self.epochs}"
            self.bars.update(self.task, epoch=epoch, metrics=metrics(event))

    def _start(self, event: PhaseStarted) -> None:
        """Add a bar, unless the phase does not train."""
        self.epochs = event.epochs
        if event.epochs:
            self.task = self.bars.add_task(
                _LABELS[event.phase],
                total=event.steps,
                epoch=f"0/{event.epochs}",
                metrics="",
            )


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
                f"{_LABELS[event.phase]} {event.epoch}/{self.epochs}  {metrics(event)}  "
                f"{left:.0f} s left",
                err=True,
            )

    def _is_due(self, epoch: int) -> bool:
        """Return whether this epoch completes another tenth of them."""
        return epoch * _LINES // self.epochs > (epoch - 1) * _LINES // self.epochs


def metrics(event: EpochEnded) -> str:
    """Return density, loss and metric of an epoch as text."""
    value = shown(event.value, event.metric)
    return f"density {event.density:.3f}  loss {event.loss:.3f}  {event.metric} {value}"


def warning(event: Collapsed | Noted) -> str:
    """Return a warning as text."""
    return escaped(f"warning: {event.message}", keep="\n")


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
