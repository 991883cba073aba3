"""All methods side by side: accuracy before and after fine-tuning, and what they cost.

    python -m benchmarks.methods digits
    python -m benchmarks.methods cifar10 --images DIR    (DIR holds train/CLASS/*.jpg and test/)

Every method gets the same network, data, seeds and fine-tuning, with gemkit's defaults for
everything else. Results are appended to benchmarks/results, and runs that are there already are
not repeated. The tables are written into docs/methods.md; ¹ marks tickets that lost whole layers.
If tickets keep less than the target density, the actual density is in parentheses.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.trial import RESULTS, measure
from gemkit.report.pages import write_results
from gemkit.study.store import Ledger, Row, mean_and_spread

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"
DENSITIES = (0.2, 0.05, 0.014)
KEYS = ("protocol", "pruner", "density", "seed")
PRUNERS = (
    "dense",
    "gem_miner",
    "edge_popup",
    "global_ep",
    "gradual_ep",
    "gradual_ep_l2",
    "snip",
    "grasp",
    "synflow",
    "prospr",
    "magnitude",
    "random",
    "smart_ratio",
    "imp_short_cold",
    "imp_short_warm",
    "imp_long_cold",
    "imp_long_warm",
    "lr_rewinding",
    "gradual_magnitude",
)


class Protocol(NamedTuple):
    """The same for every method."""

    model: str
    dataset: Row
    epochs: int
    finetune_epochs: int
    batch_size: int
    seeds: int


def protocols(images: Path | None) -> dict[str, Protocol]:
    cifar = {"name": "imagefolder", "path": str(images), "limit": 2_500, "size": 16}
    return {
        "digits": Protocol("conv4", {"name": "digits"}, 30, 30, 64, seeds=3),
        "cifar10": Protocol("resnet20", cifar, 8, 8, 64, seeds=1),
    }


def runs(name: str, protocol: Protocol) -> Iterator[Row]:
    for seed in range(protocol.seeds):
        for pruner in PRUNERS:
            for density in (1.0,) if pruner == "dense" else DENSITIES:
                run = {"protocol": name, "pruner": pruner, "density": density, "seed": seed}
                yield run | protocol._asdict()


# --- the tables ----------------------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    """Draw the results of one protocol as a Markdown table."""
    titles = [f"target density {density:g}" for density in DENSITIES]
    lines = [
        f"| pruner | search epochs | search, CPU seconds | {' | '.join(titles)} |",
        f"|---|---|---|{'---|' * len(titles)}",
    ]
    for pruner in PRUNERS:
        mine = [row for row in rows if row["pruner"] == pruner]
        if not mine:
            continue
        cells = [_cell([row for row in mine if row["density"] == d]) for d in DENSITIES]
        if pruner == "dense":
            cells = [_cell(mine), "", ""]
        alive = [row for row in mine if "after" in row]
        epochs = _span([row["search_epochs"] for row in alive])
        seconds = _span([row["cpu_seconds_search"] for row in alive])
        lines.append(f"| `{pruner}` | {epochs} | {seconds} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(rows: list[Row]) -> str:
    """Write `before → after` in percent, with the spread where there are several seeds."""
    alive = [row for row in rows if "after" in row]
    if not alive:
        return "collapsed" if rows else ""
    text = " → ".join(mean_and_spread([row[key] for row in alive]) for key in ("before", "after"))
    if any(row["empty_layers"] for row in alive):
        text += " ¹"
    kept = statistics.mean(row["kept"] / row["prunable"] for row in alive)
    if kept < 0.98 * rows[0]["density"]:
        text += f" (keeps {kept:.3f})"
    lost = len(rows) - len(alive)
    return text + (f" ({lost} of {len(rows)} collapsed)" if lost else "")


def _span(values: list[float]) -> str:
    """Write the smallest and the largest, whole numbers."""
    if not values:
        return ""
    low, high = round(min(values)), round(max(values))
    return f"{low}" if low == high else f"{low}–{high}"


def ledger(name: str) -> Ledger:
    return Ledger(RESULTS / f"methods-{name}.jsonl", KEYS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("protocol", choices=protocols(None))
    parser.add_argument("--images", type=Path, help="folder of CIFAR-10 images")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    arguments = parser.parse_args()
    if arguments.protocol == "cifar10" and arguments.images is None:
        parser.error("cifar10 needs --images DIR")
    protocol = protocols(arguments.images)[arguments.protocol]
    results = ledger(arguments.protocol)
    results.complete(runs(arguments.protocol, protocol), measure, arguments.jobs)
    write_results(PAGE, f"methods-{arguments.protocol}", table(results.rows()))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
