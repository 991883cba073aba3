"""Results as JSON lines: one row a run, appended when it ends, never edited, never run twice."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Ledger:
    """A file of results; `keys` are the fields that make one run different from another."""

    path: Path
    keys: Sequence[str]

    def rows(self) -> list[Row]:
        """Read every result."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def complete(self, planned: Iterable[Row], measure: Callable[[Row], Row], jobs: int) -> None:
        """Run what is planned and not there yet, in processes side by side, one thread each."""
        done = {self._key(row) for row in self.rows()}
        missing = [run for run in planned if self._key(run) not in done]
        self.path.parent.mkdir(exist_ok=True)
        context = get_context("spawn")  # a forked torch may hang
        with (
            Progress() as progress,
            ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool,
            self.path.open("a", encoding="utf-8") as file,
        ):
            task = progress.add_task("runs", total=len(missing))
            for ended in as_completed([pool.submit(measure, run) for run in missing]):
                print(json.dumps(ended.result(), allow_nan=False), file=file, flush=True)
                progress.advance(task)

    def append(self, row: Row) -> None:
        """Add one result."""
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps(row, allow_nan=False), file=file)

    def _key(self, row: Row) -> str:
        return json.dumps([row[key] for key in self.keys])


def _one_thread() -> None:
    torch.set_num_threads(1)


def mean_and_spread(fractions: Sequence[float]) -> str:
    """Write the mean in percent, with the standard deviation where there are several."""
    mean = f"{100 * statistics.mean(fractions):.1f}"
    if len(fractions) == 1:
        return mean
    return f"{mean} ± {100 * statistics.stdev(fractions):.1f}"


def write_table(page: Path, name: str, text: str) -> None:
    """Put a table between its markers on a page."""
    page.write_text(with_table(page.read_text(encoding="utf-8"), name, text), encoding="utf-8")


def with_table(page: str, name: str, text: str) -> str:
    """Return the page with another table between the markers of this name."""
    begin, end = f"<!-- results: {name} -->\n", "\n<!-- end of results -->"
    head, found, rest = page.partition(begin)
    _, ended, tail = rest.partition(end)
    assert found, f"the page has no place for the results '{name}'"
    assert ended, f"the results '{name}' have no end"
    return f"{head}{begin}{text}{end}{tail}"
