"""Results as JSON lines: one row a run, appended when it ends, never edited, never run twice."""

import json
import reprlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from gemkit.errors import GemkitError, OptionError
from gemkit.files import open_plain
from gemkit.report.counting import counted

Row = dict[str, Any]


@dataclass(frozen=True)
class Ledger:
    """A file of results; `keys` are the fields that make one run different from another."""

    path: Path
    keys: Sequence[str]

    def rows(self) -> list[Row]:
        """Read every result; a last line that was cut off while it was written is no result."""
        try:
            text = self._content().decode()
        except (OSError, ValueError) as error:
            raise OptionError(f"{self.path} is no ledger ({error}); name another file") from error
        *lines, rest = text.split("\n")
        del rest  # nothing, or a line without an end
        return [self._row(number, line) for number, line in enumerate(lines, 1)]

    def complete(
        self,
        planned: Iterable[Row],
        measure: Callable[[Row], Row],
        jobs: int,
        told: Callable[[Row], str] | None = None,
    ) -> None:
        """Run what is planned and not there yet, in processes side by side, one thread each.

        `told` words a result for whoever waits; without it the keys are named.
        """
        missing = self.missing(planned)
        self._drop_cut_line()
        if not missing:
            return
        self._check_writable()
        context = get_context("spawn")  # a forked torch may hang
        with (
            counted(len(missing)) as count,
            ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool,
        ):
            ended = as_completed([pool.submit(measure, run) for run in missing])
            try:
                for future in ended:
                    row = future.result()
                    self.append(row)
                    count((told or self._named)(row))
            except BrokenProcessPool as error:
                raise GemkitError(
                    f"a process was killed, perhaps for want of memory; what is done is in "
                    f"{self.path}, and the same command goes on from there"
                ) from error
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _check_writable(self) -> None:
        """Refuse a file that takes no rows, before any is made; no file is left behind."""
        there = self.path.exists()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            open_plain(self.path, "ab").close()
        except OSError as error:
            raise OptionError(
                f"cannot write results to {self.path}: {error.strerror}; name another file"
            ) from error
        if not there:
            self.path.unlink()

    def _named(self, row: Row) -> str:
        return ", ".join(f"{key} {row[key]}" for key in self.keys)

    def append(self, row: Row) -> None:
        """Add one result."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._drop_cut_line()
        with open_plain(self.path, "ab") as file:
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")

    def missing(self, planned: Iterable[Row]) -> list[Row]:
        """List what is planned and not there."""
        done = {self._key(row) for row in self.rows()}
        return [run for run in planned if self._key(run) not in done]

    def of(self, planned: Iterable[Row]) -> list[Row]:
        """Return the results of what is planned, as far as they are there, in this order."""
        done = {self._key(row): row for row in self.rows()}
        return [done[key] for run in planned if (key := self._key(run)) in done]

    def _key(self, row: Row) -> str:
        return json.dumps([row.get(key) for key in self.keys], sort_keys=True)

    def _row(self, number: int, line: str) -> Row:
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"a table is expected, not {reprlib.repr(row)}")
        except (ValueError, RecursionError) as error:
            raise OptionError(
                f"{self.path}: line {number} is no result ({error}); remove that line"
            ) from error
        return row

    def _drop_cut_line(self) -> None:
        """Remove what an interrupted process left of its last line."""
        content = self._content()
        if rest := len(content) - (content.rfind(b"\n") + 1):
            with open_plain(self.path, "r+b") as file:
                file.truncate(len(content) - rest)

    def _content(self) -> bytes:
        """Read the file, if it is there."""
        try:
            with open_plain(self.path) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return b""


def _one_thread() -> None:
    torch.set_num_threads(1)


def mean_and_spread(fractions: Sequence[float]) -> str:
    """Write the mean in percent, with the standard deviation where there are several."""
    mean = f"{100 * statistics.mean(fractions):.1f}"
    if len(fractions) == 1:
        return mean
    return f"{mean} ± {100 * statistics.stdev(fractions):.1f}"
