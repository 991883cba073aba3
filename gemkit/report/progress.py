"""Progress of a search or fine-tuning: a bar on a terminal or in a notebook, and warnings.

The Python API uses `shown`; the command line has its own from the same pieces.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gemkit.core.events import (
    Collapsed,
    EpochEnded,
    Event,
    Froze,
    Noted,
    PhaseStarted,
    Scoring,
    StepEnded,
)
from gemkit.core.text import escaped
from gemkit.core.warn import warn_user
from gemkit.training.loop import Listener
from gemkit.training.metrics import value_text
from gemkit.training.processes import rank

LABELS = {"search": "search", "finetune": "fine-tune"}
_OPEN: list[Progress] = []
"""The bar that is shown; a search inside another, in a callback, shows none."""


@contextmanager
def shown(progress: bool = True, *, many: bool = False) -> Iterator[Listener]:
    """Yield a listener for the Python API, which shows a bar and issues warnings.

    With `many` phases, as of checks, only the bar of the present one is shown, and no warnings.
    There is no bar outside a terminal or notebook, nor in any but the first of several processes.
    """
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    warn = ignore if many else warn_of
    if not progress or _OPEN or not _is_seen(console):
        yield warn
        return
    with columns(console, many=many) as bars:
        _OPEN.append(bars)
        show = Bars(bars, many=many)
        try:
            yield lambda event: (warn if isinstance(event, Collapsed | Noted) else show)(event)
        finally:
            _OPEN.pop()


def ignore(event: Event) -> None:
    """Do nothing with an event."""


def _is_seen(console: Console) -> bool:
    """Whether a bar would be seen."""
    if rank() > 0:
        return False
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None  # rich draws bars in notebooks with it
    return sys.stderr.isatty() and not console.is_dumb_terminal


def warn_of(event: Event) -> None:
    """Issue the warning of an event as a Python warning."""
    if isinstance(event, Collapsed | Noted):
        warn_user(event.message)


def columns(console: Console, *, many: bool = False) -> Progress:
    """Define the columns: phase, bar, epoch, measurements, time left."""
    return Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[epoch]}"),
        TextColumn("{task.fields[metrics]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        expand=True,
        transient=many,
    )


class Bars:
    """Show a bar for each phase, and one for its scoring; of `many` phases, for the present one."""

    def __init__(self, bars: Progress, *, many: bool = False) -> None:
        self.bars = bars
        self.many = many
        self.epochs = 0
        self.task: TaskID | None = None
        self.scoring: TaskID | None = None
        self.freeze = 0

    def __call__(self, event: Event) -> None:
        """Update the bar and its metrics, or print a warning above it."""
        if isinstance(event, PhaseStarted):
            self._start(event)
        elif isinstance(event, Scoring):
            self._score(event)
        elif isinstance(event, Froze) and self.scoring is not None:
            density = f"density {event.alive / max(1, event.prunable):.3f}"
            self.bars.update(self.scoring, completed=self.freeze, metrics=density)
        elif isinstance(event, Collapsed | Noted) and not self.many:
            self.bars.console.print(warning(event), style="yellow", soft_wrap=True)
        elif self.task is not None and isinstance(event, StepEnded):
            self.bars.update(self.task, completed=event.step)
        elif self.task is not None and isinstance(event, EpochEnded):
            epoch = f"{event.epoch}/{self.epochs}"
            self.bars.update(self.task, epoch=epoch, metrics=metrics(event))

    def _start(self, event: PhaseStarted) -> None:
        """Add a bar, unless the phase does not train."""
        former = [task for task in (self.task, self.scoring) if task is not None]
        for task in former if self.many else []:
            self.bars.remove_task(task)
        self.epochs, self.task, self.scoring = event.epochs, None, None
        if event.epochs:
            self.task = self.bars.add_task(
                LABELS[event.phase],
                total=event.steps,
                epoch=f"0/{event.epochs}",
                metrics="",
            )

    def _score(self, event: Scoring) -> None:
        """Show how far scoring is, if it has several rounds or batches."""
        if event.batches < 2 and (event.freezes < 2 or self.epochs):
            return
        done, expected = passes_of(event)
        if self.scoring is None:
            self.scoring = self.bars.add_task("scoring", total=1, epoch="", metrics="")
        self.freeze = event.freeze
        several = event.freezes > 1
        self.bars.update(
            self.scoring,
            total=event.freezes,
            completed=event.freeze - 1 + done / expected,
            epoch=f"{event.freeze}/{event.freezes}" if several else f"{done}/{expected}",
        )


class Slow:
    """Say how far a phase is, but only where nothing was said for a while."""

    def __init__(
        self,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
        seconds: float = 60.0,
    ) -> None:
        self.say = say
        self.seconds = seconds
        self.steps = 0
        self.last = ""
        self._now = now
        self._said = now()

    def rest(self) -> None:
        """Wait again: something else was said."""
        self._said = self._now()

    def __call__(self, event: Event) -> None:
        """Say how far training or scoring is."""
        if isinstance(event, PhaseStarted):
            self.steps, self.last = event.steps, ""
        elif isinstance(event, EpochEnded):
            self.last = f"  {metrics(event)}"
        elif isinstance(event, StepEnded | Scoring) and self._now() - self._said >= self.seconds:
            self.rest()
            if isinstance(event, StepEnded):
                self.say(f"{LABELS[event.phase]}: step {event.step}/{self.steps}{self.last}")
            else:
                done, expected = passes_of(event)
                where = f" {event.freeze}/{event.freezes}" if event.freezes > 1 else ""
                self.say(f"scoring{where}: {done} of {expected} passes")


def passes_of(event: Scoring) -> tuple[int, int]:
    """Return how many passes are done, and how many to expect: every batch equally often."""
    each = max(1, event.batches)
    return event.passes - 1, -(-event.passes // each) * each


def metrics(event: EpochEnded) -> str:
    """Return density, loss and metric of an epoch as text."""
    value = value_text(event.value, event.metric)
    return f"density {event.density:.3f}  loss {event.loss:.3f}  {event.metric} {value}"


def warning(event: Collapsed | Noted) -> str:
    """Return a warning as text."""
    return escaped(f"warning: {event.message}", keep="\n")
