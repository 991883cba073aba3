"""Counting runs that take long, on stderr: a bar where somebody watches, else a line for each."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def counted(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with a few words on every run that has ended."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if console.is_terminal and not console.is_dumb_terminal:
        with Progress(console=console) as bars:
            task = bars.add_task("runs", total=total)
            yield lambda words: bars.advance(task)
    else:
        yield Lines(total)


class Lines:
    """A line for every run, as a log file likes them, with the time that is left."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.ended = 0
        self.began = time.perf_counter()

    def __call__(self, words: str) -> None:
        """Write one."""
        self.ended += 1
        left = (time.perf_counter() - self.began) / self.ended * (self.total - self.ended)
        print(f"[{self.ended}/{self.total}] {words}  {left:.0f} s left", file=sys.stderr)
