"""Progress over many runs on stderr: a bar on a terminal, else a line for each run."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from gemkit.core.text import escaped


@contextmanager
def counted(total: int) -> "Iterator[Bar | Lines]":
    """Yield what is called with each run that has ended, and notes how far the others are."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if console.is_terminal and not console.is_dumb_terminal:
        with Progress(console=console) as bars:
            yield Bar(bars, total)
    else:
        yield Lines(total)


class Bar:
    """Count runs in a bar, and show above it how far each one is."""

    def __init__(self, bars: Progress, total: int) -> None:
        self.bars = bars
        self.task = bars.add_task("runs", total=total)

    def __call__(self, text: str) -> None:
        """Count a run that has ended."""
        self.bars.advance(self.task)

    def note(self, text: str) -> None:
        """Show how far a run is."""
        self.bars.console.print(escaped(text))


class Lines:
    """Print a line for each run, with an estimate of the time left."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.ended = 0
        self.began = time.perf_counter()

    def __call__(self, text: str) -> None:
        """Print the line of a run that has ended."""
        self.ended += 1
        left = (time.perf_counter() - self.began) / self.ended * (self.total - self.ended)
        print(f"[{self.ended}/{self.total}] {text}  {left:.0f} s left", file=sys.stderr)

    def note(self, text: str) -> None:
        """Print how far a run is."""
        print(escaped(text), file=sys.stderr)
