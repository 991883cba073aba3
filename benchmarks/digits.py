"""The README's table: accuracy before and after fine-tuning on the embedded digits.

    python -m benchmarks.digits

Every pruner gets the same network, data, epochs and fine-tuning; learning rates are gemkit's
defaults. Results are appended to benchmarks/results/digits.jsonl, one line per run; runs that are
there already are not repeated. The table in the README is rewritten.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.trial import RESULTS, measure
from gemkit.report.pages import write_results
from gemkit.study.store import Ledger, Row, mean_and_spread

README = Path(__file__).parent.parent / "README.md"
LEDGER = Ledger(RESULTS / "digits.jsonl", ("pruner", "density", "seed"))
CASES = [
    *(
        (pruner, density)
        for pruner in ("gem_miner", "edge_popup", "random")
        for density in (0.05, 0.02)
    ),
    ("dense", 1.0),
]
SEEDS = 5


def runs() -> Iterator[Row]:
    for seed in range(SEEDS):
        for pruner, density in CASES:
            yield {
                "pruner": pruner,
                "density": density,
                "seed": seed,
                "model": "conv4",
                "dataset": {"name": "digits"},
                "epochs": 30,
                "finetune_epochs": 30,
                "batch_size": 64,
            }


def table(results: list[Row]) -> str:
    lines = [
        "| pruner | target density | actual density | before fine-tuning | after fine-tuning |",
        "|---|---|---|---|---|",
    ]
    for pruner, density in CASES:
        mine = [row for row in results if (row["pruner"], row["density"]) == (pruner, density)]
        kept = statistics.mean(row["kept"] / row["prunable"] for row in mine)
        cells = [mean_and_spread([row[moment] for row in mine]) for moment in ("before", "after")]
        lines.append(f"| `{pruner}` | {density:g} | {kept:.4f} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    LEDGER.complete(runs(), measure, parser.parse_args().jobs)
    text = table(LEDGER.rows())
    write_results(README, "digits", text)
    print(text)


if __name__ == "__main__":
    main()
