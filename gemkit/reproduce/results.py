"""The results of every row of a table, from the ledger."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gemkit.plugins.registry import Registry
from gemkit.presets.preset import Preset
from gemkit.reproduce.scale import Scale
from gemkit.reproduce.table import Line, Table, run_of
from gemkit.study.store import Ledger, Row


@dataclass(frozen=True)
class Results:
    """One row of a table, its preset, and its results, one for each seed.

    `rows` are the runs with a ticket; `collapsed` counts the others.
    """

    line: Line
    preset: Preset
    rows: Sequence[Row]
    collapsed: int

    @property
    def kept(self) -> float:
        """The actual density, as the mean over its tickets."""
        return statistics.fmean(row["kept"] / row["prunable"] for row in self.rows)

    def controls(self, check: str) -> list[float]:
        """Return the accuracies of a control after fine-tuning."""
        return [row["controls"][check]["after"] for row in self.rows if check in row["controls"]]


def results_of(
    table: Table, registry: Registry, scale: Scale, seeds: int, ledger: Ledger
) -> list[Results]:
    """Look up every row of the table in the ledger."""
    found = []
    for line, preset in table.settings(registry, scale):
        rows = ledger.of(run_of(line, preset, seed) for seed in range(seeds))
        ended = [row for row in rows if "collapse" not in row]
        found.append(Results(line, preset, ended, len(rows) - len(ended)))
    return found
