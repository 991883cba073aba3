"""The claims of the paper on all of CIFAR-10 at full resolution: from studies to the page.

    gemkit study benchmarks/cifar10-full-resolution.toml --data-dir DIR --out STUDY
    python -m benchmarks.full_resolution STUDY…
    python -m benchmarks.full_resolution
    gemkit report benchmarks/results/cifar10-full-resolution.jsonl --out REPORT

The first command measures, the second adds the records of the studies in these folders to
benchmarks/results/cifar10-full-resolution.jsonl and writes the table into docs/reproduction.md. The
third only writes the table, and the last one makes the report of all records.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.trial import RESULTS
from gemkit.core.atomic_io import write_atomic
from gemkit.report.groups import Group, group
from gemkit.report.judged import Judged, judged
from gemkit.report.pages import write_results
from gemkit.report.records import records_from
from gemkit.report.verdicts import worded
from gemkit.study.store import Ledger
from gemkit.study.study import load

PAGE = Path(__file__).parent.parent / "docs" / "reproduction.md"
LEDGER = Ledger(RESULTS / "cifar10-full-resolution.jsonl", ("variant", "density", "seed"))
PAPER = {("Gem-Miner", 0.0144): "77.89", ("Smart Ratio", 0.0144): "65.61"}
"""Accuracy after fine-tuning in the paper, Table 16, by method and density."""

Record = Mapping[str, Any]


def gather(known: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Return all records with a result, one for each cell; of two, the one with more controls."""
    cells: dict[str, Record] = {}
    for one in (*known, *new):
        cell = json.dumps([one[key] for key in LEDGER.keys])
        if one["before"] is not None and _measured(one) >= _measured(cells.get(cell)):
            cells[cell] = one
    return list(cells.values())


def _measured(record: Record | None) -> int:
    """Count what is measured of a cell."""
    if record is None:
        return 0
    return 1 + (record["after"] is not None) + len(record["controls"])


def table(records: Sequence[Record]) -> str:
    """Return the results as a Markdown table; ± is half the interval, from three seeds on."""
    groups = group(records_from(records))
    verdicts = judged(groups)
    head = (
        *("method", "target", "kept", "before", "after", "paper"),
        *("shuffle", "reinit", "epochs", "CPU hours", "seeds"),
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for one in sorted(groups, key=lambda own: (own.density == 1, own.density)):
        own = [each for each in verdicts if each.group is one]
        lines.append(f"| {' | '.join(_row(one, own))} |")
    return "\n".join(lines)


def _row(group: Group, verdicts: Sequence[Judged]) -> list[str]:
    name = group.records[0].variant or group.label
    plan = group.records[0].config["finetune"]
    assert isinstance(plan, dict)
    searched, spent = group.spread("search_epochs"), group.spread("cpu_seconds")
    return [
        name,
        f"{100 * group.density:g} %",
        f"{100 * group.actual:.3g} %",
        *(_spread(group, moment) for moment in ("before", "after")),
        PAPER.get((name.partition(",")[0], group.density), ""),
        *(_control(verdicts, check) for check in ("shuffle", "reinit")),
        f"{searched.mean if searched else 0:g} + {plan['epochs']}",
        f"{spent.mean / 3600:.1f}" if spent else "",
        str(len(group.measured)),
    ]


def _spread(group: Group, moment: str) -> str:
    spread = group.spread(moment)
    return spread.text(group.metric) if spread else "not yet"


def _control(verdicts: Sequence[Judged], check: str) -> str:
    found = [one for one in verdicts if one.check == check and one.after is not None]
    if not found:
        return ""
    [one] = found
    assert one.after is not None
    return f"{one.after.text(one.group.metric)}, {worded(one.verdict)}"


def main() -> None:
    """Gather the records of studies, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("studies", nargs="*", type=Path, help="folders of studies")
    studies = parser.parse_args().studies
    records = LEDGER.rows()
    for folder in studies:
        records = gather(records, load(folder).results())
    if studies:
        lines = "".join(f"{json.dumps(one, allow_nan=False)}\n" for one in records)
        write_atomic(lines.encode(), LEDGER.path)
    if records:
        write_results(PAGE, "cifar10-full-resolution", table(records))


if __name__ == "__main__":
    main()
