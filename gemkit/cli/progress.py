"""Progress on stderr: a bar where somebody watches, a few plain lines where nobody does."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gemkit.cli.screen import echo
from gemkit.events import Collapsed, EpochEnded, Event, Noted, PhaseStarted, StepEnded
from gemkit.phase import Listener
from gemkit.wording import escaped

_LINES = 10
"""Plain lines a phase may write at most."""
_LABELS = {"search": "search", "finetune": "fine-tune"}


@contextmanager
def progress() -> Iterator[Listener]:
    """Yield a listener that shows how a run is going."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        with _columns(console) as bars:
            yield Bars(bars)
    else:
        yield Lines()


def _columns(console: Console) -> Progress:
    """Lay the bar out: phase, bar, epoch, measurements, time left."""
    return Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[epoch]}"),
        TextColumn("{task.fields[news]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        expand=True,
    )


class Bars:
    """One bar for every phase, moved by every step."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.epochs = 0
        self.task: TaskID | None = None

    def __call__(self, event: Event) -> None:
        """Move the bar, renew its figures, or say a warning above it."""
        if isinstance(event, PhaseStarted):
            self._begin(event)
        elif isinstance(event, Collapsed | Noted):
            self.bars.console.print(warning(event), style="yellow", soft_wrap=True)
        elif self.task is not None and isinstance(event, StepEnded):
            self.bars.update(self.task, completed=event.step)
        elif self.task is not None and isinstance(event, EpochEnded):
            self.bars.update(self.task, epoch=f"{event.epoch}/{self.epochs}", news=news(event))

    def _begin(self, event: PhaseStarted) -> None:
        """Open a bar, unless the phase does not train."""
        self.epochs = event.epochs
        if event.epochs:
            self.task = self.bars.add_task(
                _LABELS[event.phase],
                total=event.steps,
                epoch=f"0/{event.epochs}",
                news="",
            )


class Lines:
    """About ten lines for every phase, as a log file likes them."""

    def __init__(self) -> None:
        self.epochs = 0

    def __call__(self, event: Event) -> None:
        """Write a line when another tenth of the epochs is done, and every warning."""
        if isinstance(event, PhaseStarted):
            self.epochs = event.epochs
        elif isinstance(event, Collapsed | Noted):
            echo(warning(event), err=True)
        elif isinstance(event, EpochEnded) and self._is_due(event.epoch):
            left = event.seconds / event.epoch * (self.epochs - event.epoch)
            echo(
                f"{_LABELS[event.phase]} {event.epoch}/{self.epochs}  {news(event)}  "
                f"{left:.0f} s left",
                err=True,
            )

    def _is_due(self, epoch: int) -> bool:
        """Tell whether this epoch is the first to pass a tenth of them, or the last."""
        return epoch * _LINES // self.epochs > (epoch - 1) * _LINES // self.epochs


def news(event: EpochEnded) -> str:
    """Say how an epoch went."""
    return (
        f"density {event.density:.3f}  loss {event.loss:.3f}  accuracy {100 * event.accuracy:.1f} %"
    )


def warning(event: Collapsed | Noted) -> str:
    """Word a warning."""
    return escaped(f"warning: {event.message}", keep="\n")
