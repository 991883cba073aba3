"""Newer methods side by side, and against their rivals at equal epochs.

    python -m benchmarks.newer digits
    python -m benchmarks.newer cifar10 --images DIR    (DIR holds train/CLASS/*.jpg and test/)

All methods have the same network, data, seeds and epochs in all, and gemkit's defaults for the
rest. Results are appended to benchmarks/results; runs that are there already are not repeated. The
tables are written into docs/methods.md: means with 95 % intervals (Student's t), and differences of
two methods, seed by seed.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import t as student

from benchmarks.trial import RESULTS, measure
from gemkit.report.pages import write_results
from gemkit.study.store import Ledger, Row

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"
KEYS = ("protocol", "method", "density", "seed")
OFTEN = {"options": {"schedule.every": 20}}
METHODS: dict[str, dict[str, Any]] = {
    "gem_miner": {},
    "cts": {"plugin": "gemkit-cts"},
    "cts_kl": {"plugin": "gemkit-cts"},
    "concrete_gates": {"plugin": "gemkit-concrete"},
    "rigl": OFTEN,
    "set": OFTEN,
    "static ERK": {"pruner": "set", "options": {"schedule.every": 10**9}},
    "ac_dc": {"plugin": "gemkit-ac-dc"},
    "ac_dc, one training": {"pruner": "ac_dc", "plugin": "gemkit-ac-dc", "finetune_epochs": 0},
    "lamp": {},
    "movement": {},
    "continuous_sparsification": {},
    "hutchinson": {"plugin": "gemkit-hutchinson"},
    "fisher": {"plugin": "gemkit-hutchinson"},
    "px": {"plugin": "gemkit-px"},
    "wanda": {"plugin": "gemkit-wanda"},
}
"""What a method changes of the protocol; the other phase then has all the epochs."""
ALONE = ("lamp", "movement", "continuous_sparsification", "hutchinson", "fisher", "px", "wanda")
"""Methods without a rival here: three seeds will do."""
PAIRS = (
    ("cts", "gem_miner"),
    ("cts_kl", "gem_miner"),
    ("cts_kl", "cts"),
    ("cts", "concrete_gates"),
    ("rigl", "set"),
    ("rigl", "static ERK"),
    ("set", "static ERK"),
    ("ac_dc", "gem_miner"),
    ("ac_dc", "ac_dc, one training"),
)


class Protocol(NamedTuple):
    """The same for every method."""

    model: str
    dataset: Row
    epochs: int
    finetune_epochs: int
    batch_size: int
    densities: tuple[float, ...]
    seeds: int
    methods: tuple[str, ...]


def protocols(images: Path | None) -> dict[str, Protocol]:
    cifar = {"name": "imagefolder", "path": str(images), "limit": 2_500, "size": 16}
    few = ("gem_miner", "cts", "cts_kl", "rigl", "set", "static ERK")
    digits = Protocol("conv4", {"name": "digits"}, 30, 30, 64, (0.1, 0.05, 0.02), 5, tuple(METHODS))
    return {
        "digits": digits,
        "cifar10": Protocol("resnet20", cifar, 8, 8, 64, (0.05,), 3, few),
    }


def runs(name: str, protocol: Protocol) -> Iterator[Row]:
    """Yield the runs: the lowest density first, all methods with one seed before the next seed."""
    same = protocol._asdict()
    for key in ("densities", "seeds", "methods"):
        del same[key]
    for density in sorted(protocol.densities):
        for seed in range(protocol.seeds):
            for method in protocol.methods if seed < 3 else _rivals(protocol):
                run = {"protocol": name, "method": method, "pruner": method, **same}
                yield run | {"density": density, "seed": seed} | _with_all_epochs(method, same)


def _rivals(protocol: Protocol) -> list[str]:
    return [method for method in protocol.methods if method not in ALONE]


def _with_all_epochs(method: str, same: Row) -> Row:
    """Return what a method changes; epochs that it takes from one phase go to the other."""
    own = METHODS[method]
    whole = same["epochs"] + same["finetune_epochs"]
    if "epochs" in own:
        return {**own, "finetune_epochs": whole - own["epochs"]}
    if "finetune_epochs" in own:
        return {**own, "epochs": whole - own["finetune_epochs"]}
    return own


# --- the tables ----------------------------------------------------------------------------------


def table(name: str, rows: list[Row]) -> str:
    """Draw the results of one protocol, and the differences, as Markdown tables."""
    protocol = protocols(None)[name]
    if not rows:
        return "No results yet."
    densities = [density for density in protocol.densities if _at(rows, density)]
    titles = [f"density {density:g}" for density in densities]
    lines = [f"| method | epochs | {' | '.join(titles)} |", f"|---|---|{'---|' * len(titles)}"]
    for method in protocol.methods:
        mine = [row for row in rows if row["method"] == method]
        if mine:
            seeds = min(3, protocol.seeds) if method in ALONE else protocol.seeds
            cells = [_cell(_at(mine, density), seeds) for density in densities]
            epochs = f"{_searched(mine)} + {mine[0]['finetune_epochs']}"
            lines.append(f"| {_title(method)} | {epochs} | {' | '.join(cells)} |")
    lines += ["", f"| after fine-tuning | {' | '.join(titles)} |", f"|---|{'---|' * len(titles)}"]
    for one, other in PAIRS:
        pair = [[row for row in rows if row["method"] == method] for method in (one, other)]
        if all(pair):
            found = [[_at(own, density) for own in pair] for density in densities]
            cells = [_difference(*both, seeds=protocol.seeds) for both in found]
            lines.append(f"| {_title(one)} − {_title(other)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _searched(rows: list[Row]) -> str:
    """Write how many epochs the searches took, rounds included."""
    found = sorted({row.get("search_epochs", row["epochs"]) for row in rows})
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _at(rows: list[Row], density: float) -> list[Row]:
    return [row for row in rows if row["density"] == density]


def _title(method: str) -> str:
    return f"`{method}`" if method.isidentifier() else method


def _so_far(count: int, seeds: int) -> str:
    """Say how many seeds there are, if not all."""
    return "" if count >= seeds else f" ({count} of {seeds} seeds)"


def _cell(rows: list[Row], seeds: int) -> str:
    """Write `before → after` in percent, and what was lost or left out."""
    alive = [row for row in rows if "after" in row]
    if not alive:
        return "collapsed" if rows else ""
    text = " → ".join(interval([row[key] for row in alive]) for key in ("before", "after"))
    if any(row["empty_layers"] for row in alive):
        text += " ¹"
    kept = statistics.mean(row["kept"] / row["prunable"] for row in alive)
    if kept < 0.98 * rows[0]["density"]:
        text += f" (keeps {kept:.3f})"
    lost = len(rows) - len(alive)
    text += f" ({lost} of {len(rows)} collapsed)" if lost else ""
    return text + _so_far(len(rows), seeds)


def _difference(ones: list[Row], others: list[Row], seeds: int) -> str:
    """Write the mean difference after fine-tuning, over the seeds that both have."""
    after = [
        {row["seed"]: row["after"] for row in rows if "after" in row} for rows in (ones, others)
    ]
    both = sorted(after[0].keys() & after[1].keys())
    if not both:
        return ""
    found = interval([after[0][seed] - after[1][seed] for seed in both], sign="+")
    return found + _so_far(len(both), seeds)


def interval(fractions: Sequence[float], sign: str = "") -> str:
    """Return the mean in percent, with the half-width of its 95 % interval if there are several."""
    mean = f"{100 * statistics.mean(fractions):{sign}.1f}"
    count = len(fractions)
    if count == 1:
        return mean
    width = float(student.ppf(0.975, count - 1)) * statistics.stdev(fractions) / math.sqrt(count)
    return f"{mean} ± {100 * width:.1f}"


def ledger(name: str) -> Ledger:
    return Ledger(RESULTS / f"newer-{name}.jsonl", KEYS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("protocol", choices=protocols(None))
    parser.add_argument("--images", type=Path, help="folder of CIFAR-10 images")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    arguments = parser.parse_args()
    name = arguments.protocol
    if name == "cifar10" and arguments.images is None:
        parser.error("cifar10 needs --images DIR")
    results = ledger(name)
    results.complete(runs(name, protocols(arguments.images)[name]), measure, arguments.jobs)
    write_results(PAGE, f"newer-{name}", table(name, results.rows()))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
