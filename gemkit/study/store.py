"""A ledger of results as JSON lines: one row for each run, appended when it ends."""

import json
import reprlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from signal import SIGINT, Signals
from typing import Any

from gemkit.core.atomic_io import check_writable, open_plain
from gemkit.core.errors import GemkitError, OptionError, Stopped
from gemkit.core.memory import memory_explained
from gemkit.runs import signals
from gemkit.runs.locks import lock_if_possible
from gemkit.study.counting import counted
from gemkit.study.watching import begin, link_of, measured

Row = dict[str, Any]


@dataclass(frozen=True)
class Ledger:
    """A file of results; `keys` are the fields that identify a run, so that none runs twice."""

    path: Path
    keys: Sequence[str]

    def rows(self, *, cut: bool = True) -> list[Row]:
        """Read all results; a last line without an end is ignored, unless no line may be `cut`."""
        try:
            text = self._content().decode()
        except (OSError, ValueError) as error:
            raise OptionError(f"{self.path} is no ledger ({error}); name another file") from error
        *lines, rest = text.split("\n")
        lines += [rest] if rest and not cut else []
        return [self._row(number, line) for number, line in enumerate(lines, 1)]

    def complete(
        self,
        planned: Iterable[Row],
        measure: Callable[[Row], Row],
        jobs: int,
        describe: Callable[[Row], str] | None = None,
    ) -> None:
        """Run what is planned and missing, in parallel processes with one thread each.

        `describe` makes a line of progress from a row; by default it lists the keys.
        """
        missing = self.missing(planned)
        if not missing:
            return
        self.check_writable()
        try:
            self._complete(missing, measure, jobs, describe or self._describe)
        except BrokenProcessPool as error:
            raise GemkitError(
                f"a process was killed, perhaps for lack of memory; {self._continues()}"
            ) from error
        except (Stopped, KeyboardInterrupt) as stop:  # a signal to this process, or to all
            number = stop.signal if isinstance(stop, Stopped) else SIGINT
            words = f"stopped by {Signals(number).name}; {self._continues()}"
            raise Stopped(number, words) from stop

    def _complete(
        self,
        missing: Sequence[Row],
        measure: Callable[[Row], Row],
        jobs: int,
        describe: Callable[[Row], str],
    ) -> None:
        context = get_context("spawn")  # a forked torch may hang
        with (
            memory_explained("finished runs are kept, and the same command continues"),
            counted(len(missing)) as count,
            link_of(context, count.note) as link,
            ProcessPoolExecutor(
                jobs, mp_context=context, initializer=begin, initargs=(link,)
            ) as pool,
        ):
            try:
                with signals.raised():
                    ended = as_completed([pool.submit(measured, measure, one) for one in missing])
                    for future in ended:
                        row = future.result()
                        self.append(row)
                        count(describe(row))
            except BaseException:
                link.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _continues(self) -> str:
        """Say what there is, and how to continue."""
        if not self.path.exists():
            return "no run is finished, and the same command starts again"
        return f"finished runs are in {self.path}, and the same command continues from there"

    def check_writable(self) -> None:
        """Refuse a file that cannot be written, before anything runs; leave no empty file.

        Another process may append to it meanwhile, so it is never removed.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                open_plain(self.path, "ab").close()
            else:
                check_writable(self.path.parent)
        except OSError as error:
            raise OptionError(
                f"cannot write results to {self.path}: {error.strerror}; name another file"
            ) from error

    def _describe(self, row: Row) -> str:
        return ", ".join(f"{key} {row[key]}" for key in self.keys)

    def append(self, row: Row) -> None:
        """Add one result. An incomplete last line, left by a killed process, is replaced.

        The file is locked meanwhile, if it can be: another process may add a result, too.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open_plain(self.path, "a+b") as file:
            lock_if_possible(file)
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")

    def missing(self, planned: Iterable[Row]) -> list[Row]:
        """Return the planned runs that have no result."""
        done = {self._key(row) for row in self.rows()}
        return [run for run in planned if self._key(run) not in done]

    def of(self, planned: Iterable[Row]) -> list[Row]:
        """Return the existing results of planned runs, in their order."""
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

    def _content(self) -> bytes:
        """Read the file, or nothing if there is none."""
        try:
            with open_plain(self.path) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return b""


def mean_and_spread(fractions: Sequence[float]) -> str:
    """Return the mean in percent, with the standard deviation if there are several."""
    mean = f"{100 * statistics.mean(fractions):.1f}"
    if len(fractions) == 1:
        return mean
    return f"{mean} ± {100 * statistics.stdev(fractions):.1f}"
