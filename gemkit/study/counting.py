"""Progress over many runs on stderr: a bar on a terminal, else a line for each run."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def counted(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with a description of each run that has ended."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if console.is_terminal and not console.is_dumb_terminal:
        with Progress(console=console) as bars:
            task = bars.add_task("runs", total=total)
            yield lambda text: bars.advance(task)
    else:
        yield Lines(total)


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
