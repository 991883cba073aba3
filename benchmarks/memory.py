"""What a process holds at most during a training step, in numbers per parameter (Linux only).

    python -m benchmarks.memory ["vgg16 batch 8"] [--turns 5] [--threads 2]

Each contender has processes of its own, and their median counts. What a process held after a step
of a small network does not count, nor what the first two steps leave behind that could be given
back. A number is four bytes: a plain step with momentum holds at least three of them per parameter
(the weight, its gradient, its momentum), and Gem-Miner's five and a quarter (the weight under the
mask, its gradient, its score, the score's momentum, the living weights, and a byte of the mask),
besides what the network computes in between.
"""

import ctypes
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.apart import alone
from benchmarks.measure import Effort, Measure, command, lines
from benchmarks.networks import SETTINGS, WIDTHS
from benchmarks.step import STEPS, step_of
from gemkit.study.store import Row

NETWORKS = ("vgg16 batch 8", "timm resnet50")
SMALL = f"resnet20 width {WIDTHS[0]}"


def held(what: Literal["VmRSS", "VmHWM"]) -> int:
    """Return the bytes this process holds, or has held at most."""
    (line,) = [line for line in Path("/proc/self/status").read_text().split("\n") if what in line]
    return 1024 * int(line.split()[1])


def highest_during(work: Callable[[], object]) -> int:
    """Return the most bytes that this process holds while something is done."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget how much it was so far
    work()
    return held("VmHWM")


def highest(what: str, network: str) -> float:
    """Return the most that this process holds during a step, in numbers per parameter."""
    step_of(what, SMALL)()  # so that libraries are ready
    before = held("VmRSS")
    step = step_of(what, network)
    for _ in range(2):
        step()
    most = highest_during(step) - before
    return most / 4 / sum(one.numel() for one in SETTINGS[network].build().parameters())


def measure(network: str, effort: Effort) -> Row:
    """Let every contender take a few steps, in several processes one after the other."""
    found = {
        what: [alone(partial(highest, what, network), effort.threads) for _ in range(effort.turns)]
        for what in STEPS
    }
    return {"numbers": {what: statistics.median(numbers) for what, numbers in found.items()}}


def table(rows: list[Row]) -> str:
    """Draw a row for every network."""
    cells = [[row["subject"], *(f"{row['numbers'][what]:.1f}" for what in STEPS)] for row in rows]
    return lines(["network", *STEPS], cells)


MEASURE = Measure("memory", NETWORKS, measure, table, turns=5)

if __name__ == "__main__":
    command(MEASURE, __doc__)
