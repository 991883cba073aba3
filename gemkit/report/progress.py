"""Progress of a search or fine-tuning: a bar on a terminal or in a notebook, and warnings.

The Python API uses `shown`; the command line has its own from the same pieces.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gemkit.core.events import Collapsed, EpochEnded, Event, Noted, PhaseStarted, StepEnded
from gemkit.core.text import escaped
from gemkit.core.warn import warn_user
from gemkit.training.loop import Listener
from gemkit.training.metrics import value_text

LABELS = {"search": "search", "finetune": "fine-tune"}
_OPEN: list[Progress] = []
"""The bar that is shown; a search inside another, in a callback, shows none."""


@contextmanager
def shown(progress: bool = True) -> Iterator[Listener]:
    """Yield a listener for the Python API, which shows a bar and issues warnings.

    There is no bar outside a terminal or notebook, nor in any but the first of several processes.
    """
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not progress or _OPEN or not _is_seen(console):
        yield warn_of
        return
    with columns(console) as bars:
        _OPEN.append(bars)
        show = Bars(bars)
        try:
            yield lambda event: (warn_of if isinstance(event, Collapsed | Noted) else show)(event)
        finally:
            _OPEN.pop()


def _is_seen(console: Console) -> bool:
    """Whether a bar would be seen."""
    if os.environ.get("RANK", "0") != "0":
        return False
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None  # rich draws bars in notebooks with it
    return sys.stderr.isatty() and not console.is_dumb_terminal


def warn_of(event: Event) -> None:
    """Issue the warning of an event as a Python warning."""
    if isinstance(event, Collapsed | Noted):
        warn_user(event.message)


def columns(console: Console) -> Progress:
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
                LABELS[event.phase],
                total=event.steps,
                epoch=f"0/{event.epochs}",
                metrics="",
            )


def metrics(event: EpochEnded) -> str:
    """Return density, loss and metric of an epoch as text."""
    value = value_text(event.value, event.metric)
    return f"density {event.density:.3f}  loss {event.loss:.3f}  {event.metric} {value}"


def warning(event: Collapsed | Noted) -> str:
    """Return a warning as text."""
    return escaped(f"warning: {event.message}", keep="\n")
