"""The claims of the paper on all of CIFAR-10 at full resolution: from studies to the page.

    gemkit study benchmarks/cifar10-full-resolution.toml --data-dir DIR --out STUDY
    python -m benchmarks.full_resolution STUDY…
    python -m benchmarks.full_resolution
    gemkit report benchmarks/results/cifar10-full-resolution --out REPORT

The first command measures, the second adds the finished stages of the studies in these folders to
benchmarks/results/cifar10-full-resolution, without logs and tickets, and writes the table
into docs/reproduction.md. The third only writes the table, and the last one makes the report. That
folder is a study itself: with a copy of it as STUDY, the first command measures what is missing.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.trial import RESULTS
from gemkit.report.groups import Group, group
from gemkit.report.judged import Judged, judged
from gemkit.report.pages import write_results
from gemkit.report.records import records_from
from gemkit.report.verdicts import worded
from gemkit.study.merging import merge
from gemkit.study.stage_store import StageStore
from gemkit.study.study import load

PAGE = Path(__file__).parent.parent / "docs" / "reproduction.md"
STORE = RESULTS / "cifar10-full-resolution"
KEPT = ("stage.json", "result.json")
"""The files of a stage that are kept."""
TICKET = "ticket.safetensors"
PAPER = {
    ("Gem-Miner, auto", 0.0144): "77.89",
    ("Gem-Miner, λ of the paper", 0.0144): "77.89",
    ("Smart Ratio", 0.0144): "65.61",
}
"""Accuracy after fine-tuning in the paper, Table 16, by method and density."""

Record = Mapping[str, Any]


def gather(studies: Sequence[Path], store: Path = STORE) -> None:
    """Add the finished stages of studies to a store, without logs and tickets.

    The ticket of a cell is kept while another of its stages needs it.
    """
    merge(studies, store)
    stages = StageStore(store)
    _, cells = stages.cells()
    needed = {
        cell.search for cell in cells if any(stages.result(one) is None for one in cell.stages())
    }
    for file in (store / "stages").glob("*/*"):
        kept = (*KEPT, TICKET) if file.parent.name in needed else KEPT
        if file.is_file() and file.name not in kept:
            file.unlink()


def measured(store: Path = STORE) -> list[Record]:
    """Return the records of all cells that have a result."""
    records = load(store).results() if store.exists() else []
    return [one for one in records if one["before"] is not None]


def table(records: Sequence[Record]) -> str:
    """Return the results as a Markdown table; ± is half the interval, from three seeds on."""
    groups = group(records_from(records))
    verdicts = judged(groups)
    head = (
        *("method", "target", "kept", "before", "after", "paper"),
        *("shuffle", "reinit", "epochs", "precision", "CPU hours", "seeds"),
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
        PAPER.get((name, group.density), ""),
        *(_control(verdicts, check) for check in ("shuffle", "reinit")),
        f"{searched.mean if searched else 0:g} + {plan['epochs']}",
        _precision(group.records[0].config),
        f"{spent.mean / 3600:.1f}" if spent else "",
        str(len(group.measured)),
    ]


def _precision(config: Mapping[str, Any]) -> str:
    """Return the precision of a run; what is at its default is left out of a configuration."""
    return {"32": "float32"}.get(own := config["runtime"].get("precision", "32"), own)


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
    if studies:
        gather(studies)
    if records := measured():
        write_results(PAGE, "cifar10-full-resolution", table(records))


if __name__ == "__main__":
    main()
