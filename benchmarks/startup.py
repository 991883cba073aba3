"""How long commands take before they do anything.

    python -m benchmarks.startup [--turns 11]

Each is a new process; files are in the system's cache after the first turns.
"""

import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.measure import Effort, Measure, command, lines, raced
from gemkit.compaction.timing import time_interleaved
from gemkit.study.store import Row

GEMKIT = (sys.executable, "-m", "gemkit")
COMMANDS: dict[str, Sequence[str]] = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "gemkit --help": (*GEMKIT, "--help"),
    "gemkit run --help": (*GEMKIT, "run", "--help"),
    'python -c "import torch"': (sys.executable, "-c", "import torch"),
    "gemkit parts": (*GEMKIT, "parts"),
}


def measure(subject: str, effort: Effort) -> Row:
    """Race all commands."""
    start = partial(subprocess.run, check=True, capture_output=True)
    contenders = {name: partial(start, words) for name, words in COMMANDS.items()}
    return raced(time_interleaved(contenders, effort.turns), "python -c pass")


def table(rows: list[Row]) -> str:
    """Draw a row for every command."""
    cells = [
        [f"`{name}`", f"{median / 1e3:.2f} ({low / 1e3:.2f}–{high / 1e3:.2f})"]
        for row in rows
        for name, (low, median, high) in row["milliseconds"].items()
    ]
    return lines(["command", "seconds"], cells)


MEASURE = Measure("startup", ("commands",), measure, table, turns=11)

if __name__ == "__main__":
    command(MEASURE, __doc__)
