"""Progress of a phase: a bar on a terminal or in a notebook, and warnings.

Other rooms may not print. The Python API shows what `shown` yields; the command line makes its own
of the same pieces.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gemkit.core.errors import GemkitWarning
from gemkit.core.events import Collapsed, EpochEnded, Event, Noted, PhaseStarted, StepEnded
from gemkit.core.text import escaped
from gemkit.training.loop import Listener
from gemkit.training.metrics import value_text

LABELS = {"search": "search", "finetune": "fine-tune"}
_OPEN: list[Progress] = []
"""The bar on the screen; a search inside another, in a callback, shows none."""


@contextmanager
def shown(progress: bool = True) -> Iterator[Listener]:
    """Yield a listener for the Python API, which shows a bar and issues warnings.

    There is no bar where nobody would see it: stderr is no terminal and this is no notebook, or
    this is not the first of several processes.
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
    """Whether somebody sees a bar."""
    if os.environ.get("RANK", "0") != "0":
        return False
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None  # rich draws bars in notebooks with it
    return sys.stderr.isatty() and not console.is_dumb_terminal


def warn_of(event: Event) -> None:
    """Issue what an event warns of as a Python warning."""
    if isinstance(event, Collapsed | Noted):
        warn_user(event.message)


def warn_user(message: str) -> None:
    """Issue a warning at the line of the caller's own code that called gemkit."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(escaped(message, keep="\n"), GemkitWarning, stacklevel=depth)


def _is_ours(names: dict[str, Any]) -> bool:
    """Whether code with these global names is gemkit's; code that is executed has no name."""
    return str(names.get("__name__", "")).startswith("gemkit.")


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
