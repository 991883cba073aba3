"""What all measurements of speed share: how hard to try, what a row says, how it is told."""

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from gemkit.compaction.timing import Spread, Times
from gemkit.runs.machine import host
from gemkit.study.store import Row


class Effort(NamedTuple):
    """How hard to try."""

    turns: int
    threads: int


class Measure(NamedTuple):
    """A kind of measurement: what of, how, and how it is told."""

    what: str
    subjects: Sequence[str]
    measure: Callable[[str, Effort], Row]
    table: Callable[[list[Row]], str]
    turns: int = 15

    def row(self, subject: str, effort: Effort) -> Row:
        """Measure a subject, and note what the figures depend on."""
        load = os.getloadavg()[0]
        return {
            "what": self.what,
            "subject": subject,
            **effort._asdict(),
            **self.measure(subject, effort),
            "load": round(load, 1),
            "host": host() | {"threads": effort.threads},
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("gemkit", "torch", "timm", "numpy")
            },
            "libc": " ".join(platform.libc_ver()),
        }


def raced(times: Mapping[str, Times], against: str) -> Row:
    """Write down the outcome of a race: milliseconds, and multiples of one contender's time."""
    return {
        "milliseconds": {
            name: [1e3 * second for second in own.spread] for name, own in times.items()
        },
        "ratios": {name: list(own.against(times[against])) for name, own in times.items()},
    }


def ratio(numbers: Sequence[float], digits: int = 2) -> str:
    """Write a ratio with its quartiles."""
    low, median, high = Spread(*numbers)
    return f"{median:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def lines(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Draw a Markdown table."""
    rows = [titles, ["---"] * len(titles), *cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def effort_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how hard to try."""
    parser.add_argument("--turns", type=int, help="how often each contender is timed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())


def command(measure: Measure, about: str | None) -> None:
    """Measure and print, keeping nothing."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    parser.add_argument("subjects", nargs="*", default=measure.subjects, metavar="SUBJECT")
    effort_options(parser)
    given = parser.parse_args()
    if unknown := set(given.subjects) - set(measure.subjects):
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(measure.subjects)}")
    effort = Effort(given.turns or measure.turns, given.threads)
    for subject in given.subjects:
        print(measure.table([measure.row(subject, effort)]), flush=True)
