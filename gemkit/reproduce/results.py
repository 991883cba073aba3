"""What is known of a table: the results of every row, ready to be laid out and drawn."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gemkit.preset import Preset
from gemkit.registry import Registry
from gemkit.report.ledger import Ledger, Row
from gemkit.reproduce.scale import Scale
from gemkit.reproduce.table import Line, Table, run_of


@dataclass(frozen=True)
class Results:
    """One row of a table: what it says, what was run for it, and the results, one for a seed.

    `rows` are the runs that ended with a ticket; `collapsed` counts the others.
    """

    line: Line
    preset: Preset
    rows: Sequence[Row]
    collapsed: int

    @property
    def kept(self) -> float:
        """The mean density of its tickets."""
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
