"""Every epoch as a row of a CSV file: `gemkit run --observer csv`."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from gemkit.core.atomic_io import read, write_atomic
from gemkit.core.events import EpochEnded, Event
from gemkit.parts.observer import Observer, ignore
from gemkit.plugins.markers import hookimpl

_PHASES = ("search", "finetune")
_FIELDS = ("phase", "epoch", "loss", "metric", "value", "density", "strength", "lr", "seconds")


class CsvLog(Observer):
    """Write phase, epoch, loss, metric, density, λ and learning rate of every epoch as CSV.

    A resumed run replaces the rows after its checkpoint. Without a folder nothing is written.
    """

    name = "csv"

    file: str = Field(
        default="epochs.csv",
        pattern=r"^[\w.-]*\w\.csv$",
        description="the name of the file in the run's folder",
    )

    def listen(self, run_dir: Path | None) -> Callable[[Event], None]:
        """Read the rows that are there."""
        return _Table(run_dir / self.file) if run_dir else ignore


class _Table:
    """The rows of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = _rows(path) if path.exists() else []

    def __call__(self, event: Event) -> None:
        """Write the file with one more row, in place of earlier ones of this epoch and later."""
        if isinstance(event, EpochEnded):
            here = (_PHASES.index(event.phase), event.epoch)
            self.rows = [row for row in self.rows if _place(row) < here]
            self.rows.append({name: _text(getattr(event, name)) for name in _FIELDS})
            text = io.StringIO()
            writer = csv.DictWriter(text, _FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
            write_atomic(text.getvalue().encode(), self.path, within=self.path.parent)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _rows(path: Path) -> list[dict[str, str]]:
    """Read a file of ours; rows of anything else are dropped."""
    text = read(path, within=path.parent).decode(errors="replace")
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error:
        return []
    return [row for row in rows if set(row) == set(_FIELDS) and _place(row) > (-1, 0)]


def _place(row: dict[str, str]) -> tuple[int, int]:
    """Return phase and epoch of a row, to compare them; (-1, 0) if it has none."""
    phase, epoch = row["phase"], row["epoch"] or ""
    known = phase in _PHASES and epoch.isdecimal() and len(epoch) < 10
    return (_PHASES.index(phase), int(epoch)) if known else (-1, 0)


@hookimpl
def gemkit_observers() -> list[type[Observer]]:
    """Register the observer."""
    return [CsvLog]
