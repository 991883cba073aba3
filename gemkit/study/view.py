"""The view of a study at work: a table that fills on a terminal, and lines elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gemkit.core.text import escaped, number_of
from gemkit.report.records import unknown
from gemkit.report.spread import INTERVAL, spread_of
from gemkit.report.tables import wide_table
from gemkit.runs import signals
from gemkit.sanity.verdicts import LEAST_SEEDS
from gemkit.study.cell import Stage
from gemkit.study.driver import Board, StudyView
from gemkit.study.records import Record, groups_of, record_of
from gemkit.study.stage_store import StageResult
from gemkit.study.status import Estimate
from gemkit.training.metrics import METRICS

_STOPPING = b"\ngemkit: stopping when running stages are saved; a second signal stops at once\n"
_FIXED = 5
_ROWS = 40
"""Rows of the table on a terminal; the groups at work are shown first."""
_AT_WORK = 8
"""Stages at work to show the progress of, at most."""
_QUIET = {"lines": 60.0, "table": 5.0}
"""Seconds after which progress within stages is shown again."""

_HALF = f"half the {INTERVAL}, with {number_of(LEAST_SEEDS, 'seed')} or more"
"""What ± is."""


def shown(progress: bool) -> StudyView:
    """Return what shows a study: nothing, a table, or lines."""
    if not progress:
        return StudyView()
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    return LiveTable(console) if console.is_terminal and not console.is_dumb_terminal else Lines()


class Lines(StudyView):
    """Print a line for each stage that ends, and the progress of long ones once a minute."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.board = Board("", [], {})
        self.estimate = Estimate([], {})
        self.total = self.ends = 0
        self._now, self._printed = now, now()
        self._progress: list[str] = []

    def begin(self, board: Board) -> None:
        """Print what is there and what is left."""
        self.board, self.total = board, len(board.missing())
        self.estimate = Estimate(board.cells, board.results)
        done = len(board.results)
        _print(
            f"{number_of(len(board.cells), 'cell')}, {number_of(len(board.stages), 'stage')}: "
            f"{done} there already, {self.total} to run, {board.jobs} at once"
        )

    def ended(self, stage: Stage, seconds: float | None) -> None:
        """Print the line of a stage."""
        self.ends += 1
        result = self.board.results.get(stage.name)
        if result is None:
            outcome = f"failed: {self.board.failures.get(stage.name)}"
        else:
            self.estimate.add(stage.name, result)
            outcome = result_text(result)
            outcome += " (by another driver)" if seconds is None else f" ({seconds:.1f} s)"
        left = left_text(self.estimate, self.board.jobs)
        _print(f"[{self.ends}/{self.total}] {stage.title}: {outcome}{left}")

    def tick(self) -> None:
        """Print how far the stages at work are, once a minute, if they have come further."""
        if self._now() - self._printed < _QUIET["lines"]:
            return
        former, self._progress = self._progress, self.board.progress()[:_AT_WORK]
        self._printed = self._now()
        for line in self._progress:
            if line not in former:
                _print(f"  {line}")

    def note(self, text: str) -> None:
        """Print a note."""
        _print(f"note: {text}")

    def stopping(self) -> None:
        """Say that the study is about to stop, and let a second signal end the process."""
        _stopping()


class LiveTable(StudyView):
    """A table of means over seeds, which fills as stages end."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.board = Board("", [], {})
        self.estimate = Estimate([], {})
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self._dirty = True
        self._drawn = 0.0
        self._progress: list[str] = []

    def begin(self, board: Board) -> None:
        """Start drawing."""
        self.board = board
        self.estimate = Estimate(board.cells, board.results)
        self.live.start()

    def ended(self, stage: Stage, seconds: float | None) -> None:
        """Remember to draw again."""
        self._dirty = True
        if (result := self.board.results.get(stage.name)) is not None:
            self.estimate.add(stage.name, result)
        elif (reason := self.board.failures.get(stage.name)) is not None:
            self.note(f"{stage.title} failed: {reason}")

    def tick(self) -> None:
        """Draw the table, at most once a second or so: it is made of all records."""
        cost = 0.02 * len(self.board.cells) / 100
        waited = time.monotonic() - self._drawn
        if waited > max(_QUIET["table"], 10 * cost):
            former, self._progress = self._progress, self.board.progress()[:_AT_WORK]
            self._dirty |= former != self._progress
        if self._dirty and waited > max(0.5, 10 * cost):
            self.live.update(self._picture(), refresh=True)
            self._dirty, self._drawn = False, time.monotonic()

    def note(self, text: str) -> None:
        """Print a note above the table."""
        self.live.console.print(Text(f"note: {escaped(text)}"))

    def stopping(self) -> None:
        """Say that the study is about to stop, and let a second signal end the process."""
        _stopping()

    def close(self) -> None:
        """Leave the screen as it was."""
        self.live.stop()

    def _picture(self) -> Table:
        board = self.board
        records = [record_of("", cell, board.results, board.failures) for cell in board.cells]
        header, rows = group_rows(records)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for place, title in enumerate(header):
            table.add_column(
                title, justify="left" if place < len(header) - _numbers(header) else "right"
            )
        for row in rows[:_ROWS]:
            table.add_row(*map(escaped, row))
        if len(rows) > _ROWS:
            table.add_row(f"… and {len(rows) - _ROWS} more")
        failed = f", {len(board.failures)} failed" if board.failures else ""
        table.caption = (
            f"{len(board.results)} of {number_of(len(board.stages), 'stage')} done, "
            f"{len(board.running)} queued or running{failed}"
            f"{left_text(self.estimate, board.jobs)}\n±: {_HALF}"
            + "".join(f"\n{line}" for line in self._progress)
        )
        return table


def result_text(result: StageResult) -> str:
    """Return what a stage measured, in words."""
    values = [("before", result.before), ("after", result.after)]
    words = [f"{when} {_text(one, result.metric)}" for when, one in values if one is not None]
    words += [f"{name} {one:.4g}" for name, one in result.numbers.items()]
    words += [f"not made: {result.unmade}"] if result.unmade else []
    words += ["collapsed"] if result.collapse and result.ticket is None else []
    return ", ".join(words)


def left_text(estimate: Estimate, jobs: int) -> str:
    """Return the time left in words, or nothing if it is not known yet."""
    seconds = estimate.seconds()
    return f", about {duration(seconds / jobs)} left" if seconds else ""


def duration(seconds: float) -> str:
    """Return a time in words: `45 s`, `12 min`, `3.5 h`, `2.1 days`."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (unit == "min" and seconds >= 100):
            shown = seconds / size
            return f"{shown:.0f} {unit}" if shown >= 10 else f"{shown:.1f} {unit}"
    return f"{seconds:.0f} s"


def group_rows(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table with a row for all seeds of a cell.

    Columns that are the same in all rows are left out, except the pruner and the density.
    """
    groups = groups_of(records)
    axes = list(dict.fromkeys(name for title in groups for name, _ in title))
    titles = [dict(title) for title in groups]
    varied = [
        axis
        for axis in axes
        if axis in ("pruner", "density") or len({str(title.get(axis)) for title in titles}) > 1
    ]
    checks = list(dict.fromkeys(name for one in records for name in one["controls"]))
    header = [*_short(varied), "seeds", "before", "after", *checks]
    rows = [
        [*(_shown(title.get(axis)) for axis in varied), *_measured(own, checks)]
        for title, own in zip(titles, groups.values(), strict=True)
    ]
    return header, rows


def _short(paths: Sequence[str]) -> list[str]:
    """Return the last words of paths, or all of those whose last words are the same."""
    last = [path.removesuffix(".name").rpartition(".")[2] for path in paths]
    return [word if last.count(word) == 1 else path for word, path in zip(last, paths, strict=True)]


def _measured(records: Sequence[Record], checks: Sequence[str]) -> list[str]:
    done = sum(one["state"] == "done" for one in records)
    failed = sum(one["state"] == "failed" for one in records)
    columns = [[one[when] for one in records] for when in ("before", "after")]
    columns += [[one["controls"].get(name, {}).get("after") for one in records] for name in checks]
    metric = records[0]["metric"]
    counts = f"{done}/{len(records)}" + (f", {failed} failed" if failed else "")
    return [counts, *(mean_text(values, metric) for values in columns)]


def mean_text(values: Sequence[float | None], metric: str) -> str:
    """Return the mean of the values there are, ± half its interval, as a report does."""
    spread = spread_of([value for value in values if value is not None])
    return "" if spread is None else spread.text(METRICS.get(metric) or unknown(metric))


def measure_text(metric: str) -> str:
    """Say how `mean_text` writes a metric."""
    return f"{' in %' if _is_share(metric) else ''}, mean; ± is {_HALF}"


def _text(value: float, metric: str) -> str:
    return f"{100 * value:.1f} %" if _is_share(metric) else f"{value:.4g}"


def _is_share(metric: str) -> bool:
    return metric in METRICS and METRICS[metric].share


def _shown(value: Any) -> str:  # noqa: ANN401 - the value of any axis
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _numbers(header: Sequence[str]) -> int:
    return len(header) - list(header).index("seeds")


def _print(text: str) -> None:
    print(escaped(text, keep="\n"), file=sys.stderr, flush=True)


def _stopping() -> None:
    signals.end_at_once()
    with suppress(OSError):  # the terminal may be closed; print is not reentrant
        os.write(2, _STOPPING)


def group_table(records: Sequence[Record]) -> str:
    """Return the means over seeds as a table, for pipes and terminals."""
    header, rows = group_rows(records)
    first = len(header) - _numbers(header)
    return wide_table(header, rows, numbers=range(first, len(header)))


def problems_text(problems: Mapping[str, int]) -> str:
    """Return the reasons of failed cells, the most frequent first."""
    ordered = sorted(problems.items(), key=lambda one: -one[1])
    return "\n".join(f"{number_of(count, 'cell')} failed: {escaped(why)}" for why, count in ordered)
