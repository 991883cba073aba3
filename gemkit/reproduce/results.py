"""The results of every row of a table, from the ledger."""

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gemkit.core.errors import OptionError
from gemkit.parts.recipe import Recipe
from gemkit.plugins.registry import Registry
from gemkit.presets.preset import Preset
from gemkit.reproduce.scale import Scale
from gemkit.reproduce.table import KEYS, Line, Table, run_of
from gemkit.study.store import Ledger, Row


@dataclass(frozen=True)
class Results:
    """One row of a table, its preset and recipe, and its results, one for each seed.

    `rows` are the runs with a ticket; `collapsed` counts those that lost every weight. `refused` is
    why there is none: the method does not fit the network.
    """

    line: Line
    preset: Preset
    recipe: Recipe
    rows: Sequence[Row]
    collapsed: int = 0
    refused: str = ""

    @property
    def kept(self) -> float:
        """The actual density, as the mean over its tickets."""
        return statistics.fmean(row["kept"] / row["prunable"] for row in self.rows)

    def mean(self, stage: str) -> float:
        """Return the mean accuracy `before` or `after` fine-tuning."""
        return statistics.fmean(row[stage] for row in self.rows)

    def controls(self, check: str) -> list[float]:
        """Return the accuracies of a control after fine-tuning."""
        return [row["controls"][check]["after"] for row in self.rows if check in row["controls"]]


def results_of(
    table: Table, registry: Registry, scale: Scale, seeds: int, ledger: Ledger
) -> list[Results]:
    """Look up every row of the table in the ledger."""
    found, index = [], Index(ledger)
    for line, preset in table.settings(registry, scale):
        runs = [run_of(line, preset, seed, synthetic=scale.synthetic) for seed in range(seeds)]
        rows = list(index.of(runs))
        tickets = [row for row in rows if "after" in row]
        collapsed = sum("collapse" in row for row in rows)
        refused = next((row["refused"] for row in rows if "refused" in row), "")
        recipe = preset.made(registry)
        found.append(Results(line, preset, recipe, tickets, collapsed, refused))
    return found


class Index:
    """The rows of a ledger by run; a row with more controls than a run asks for serves it too."""

    def __init__(self, ledger: Ledger) -> None:
        self._rows: dict[str, list[Row]] = {}
        for row in ledger.rows():
            self._rows.setdefault(_key(row), []).append(row)

    def row(self, run: Row) -> Row | None:
        """Return the result of a run, with its own controls rather than more, or None."""
        own = self._rows.get(_key(run), [])
        served = [row for row in own if set(run["checks"]) <= set(row["checks"])]
        return min(served, key=lambda row: len(row["checks"]), default=None)

    def of(self, runs: Iterable[Row]) -> Iterator[Row]:
        """Yield the results of runs that have one."""
        yield from filter(None, map(self.row, runs))

    def missing(self, runs: Iterable[Row]) -> list[Row]:
        """Return the runs without a result, each once."""
        left = {json.dumps(run, sort_keys=True): run for run in runs if self.row(run) is None}
        return list(left.values())


def _key(row: Row) -> str:
    return json.dumps([row.get(key) for key in KEYS if key != "checks"], sort_keys=True)


def check_kind(ledger: Ledger, *, synthetic: bool) -> None:
    """Refuse a ledger of real results for synthetic ones, and the reverse."""
    if any(bool(row.get("synthetic")) != synthetic for row in ledger.rows()):
        own, other = ("real", "--try") if synthetic else ("synthetic", "no --try")
        raise OptionError(
            f"{ledger.path} has results on {own} data, and this command has {other}; name another "
            "file with --ledger"
        )
