"""Penalties that follow the target density, against fixed ones and against no penalty at all.

    python -m benchmarks.density
    python -m benchmarks.density short
    python -m benchmarks.density cifar10 --images DIR    (DIR holds train/CLASS/*.jpg and test/)

All runs of a protocol have the same networks, data, seeds, learning rates and fine-tuning. `topk`
ranks the same scores globally, without a penalty, along the curve that `auto` follows. The best
fixed λ of a grid is chosen by validation accuracy, separately before and after fine-tuning. Results
are appended to benchmarks/results/density.jsonl, and runs that are there already are not repeated.
The tables are written into docs/auto-lambda.md.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.trial import RESULTS, measure
from gemkit import Recipe, load_plugins
from gemkit.builtin.auto import Auto
from gemkit.parts.schedule import Freeze, FreezeSchedule
from gemkit.report.pages import write_results
from gemkit.study.store import Ledger, Row, mean_and_spread

PAGE = Path(__file__).parent.parent / "docs" / "auto-lambda.md"
LEDGER = Ledger(
    RESULTS / "density.jsonl", ("protocol", "arm", "model", "density", "seed", "epochs")
)
GRID = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
DEFAULT = "l2 1e-04"
FIXED = tuple(f"l2 {weight:.0e}" for weight in GRID)
ARMS = ("auto", DEFAULT, "topk", "auto l1", *(arm for arm in FIXED if arm != DEFAULT))
DENSITIES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.014)
LENGTHS = (10,)
SEEDS = 5
DIGITS: Row = {"model": "conv4", "dataset": {"name": "digits"}, "batch_size": 64}


class Curve(FreezeSchedule):
    """The curve of `auto`, in one freeze an epoch."""

    name = "curve"

    @property
    def trains(self) -> bool:
        """Freezes lie between epochs."""
        return True

    def freezes(self, target: float, epochs: int, steps_per_epoch: int) -> list[Freeze]:
        """Fall from one half to the target, in equal ratios, and stay there."""
        last = max(1, int(Auto().end * epochs))
        densities = [0.5 * (2 * target) ** min(1, epoch / last) for epoch in range(epochs)]
        return [
            Freeze(epoch * steps_per_epoch, min(1.0, density) if epoch < last else target)
            for epoch, density in enumerate(densities)
        ]


def recipe_of(arm: str) -> Recipe:
    """Return Gem-Miner with the penalty of an arm."""
    kind, _, detail = arm.partition(" ")
    registry = load_plugins(only=[])
    parts: dict[str, Any] = {"regularizer": kind if kind != "topk" else "none"}
    if kind == "topk":
        recipe = registry.recipe("gem_miner", parts=parts | {"rounding": "topk"})
        return recipe.model_copy(update={"schedule": Curve()})
    if kind == "l2":
        parts["regularizer"] = {"name": "l2", "weight": float(detail)}
    if kind == "auto":
        parts["regularizer"] = {"name": "auto", "form": detail or "l2"}
    return registry.recipe("gem_miner", parts=parts)


def measure_arm(run: Row) -> Row:
    """Measure one run, and leave out what the arm says already."""
    return measure(run, recipe_of(run["arm"]))


# --- what is run ---------------------------------------------------------------------------------


def digits() -> Iterator[Row]:
    own = DIGITS | {"epochs": 30, "finetune_epochs": 30}
    for seed in range(SEEDS):
        for arm in ARMS:
            for density in DENSITIES:
                yield {"protocol": "digits", "arm": arm, "density": density, "seed": seed} | own


def short() -> Iterator[Row]:
    for seed in range(SEEDS):
        for epochs in LENGTHS:
            for arm in (DEFAULT, "auto"):
                own = DIGITS | {"epochs": epochs, "finetune_epochs": epochs}
                yield {"protocol": "short", "arm": arm, "density": 0.05, "seed": seed} | own


def cifar10(images: Path) -> Iterator[Row]:
    data = {"name": "imagefolder", "path": str(images), "limit": 5_000, "size": 16}
    own = {"dataset": data, "batch_size": 64, "epochs": 16, "finetune_epochs": 16}
    cases = [("resnet20", density) for density in (0.2, 0.05, 0.0144, 0.0059)]
    cases += [("mobilenet_v2", density) for density in (0.05, 0.0144)]
    for seed in range(2):
        for model, density in cases:
            for arm in ("auto", DEFAULT):
                run = {"protocol": "cifar10", "arm": arm, "model": model, "density": density}
                yield run | own | {"seed": seed}


# --- the tables ----------------------------------------------------------------------------------


def _of(rows: Sequence[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def _ratios(rows: Sequence[Row]) -> str:
    """Write the mean of actual ÷ target, and the lowest."""
    ratios = [row["kept"] / row["prunable"] / row["density"] for row in rows if "kept" in row]
    return f"{statistics.mean(ratios):.3f} ({min(ratios):.3f})" if ratios else "collapsed"


def _accuracies(rows: Sequence[Row], moment: str) -> str:
    found = [row[moment] for row in rows if moment in row]
    lost = len(rows) - len(found)
    text = mean_and_spread(found) if found else "collapsed"
    return text + (f" ({lost} of {len(rows)} collapsed)" if lost and found else "")


def _mean(rows: Sequence[Row], key: str) -> float:
    return statistics.mean(row.get(key, 0.0) for row in rows)


def _best(rows: Sequence[Row], moment: str) -> list[Row]:
    """Return the runs of the fixed λ with the best validation accuracy."""
    arms = [_of(rows, arm=arm) for arm in FIXED]
    return max(arms, key=lambda own: _mean(own, f"validation_{moment}"))


def digits_table(rows: Sequence[Row]) -> str:
    lines = [
        "| target | penalty | actual ÷ target: mean (lowest) | before | after | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for density in DENSITIES:
        here = _of(rows, density=density)
        for title, arm in (
            ("default λ", DEFAULT),
            ("no penalty, top-k", "topk"),
            ("`auto`", "auto"),
            ("`auto:l1`", "auto l1"),
        ):
            own = _of(here, arm=arm)
            cells = [_accuracies(own, moment) for moment in ("before", "after")]
            text = f"| {density:g} | {title} | {_ratios(own)} | {cells[0]} | {cells[1]} |"
            lines += [f"{text} {len(own)} |"] if own else []
        if not all(_of(here, arm=arm) for arm in FIXED):
            continue
        best = [_best(here, moment) for moment in ("before", "after")]
        cells = [
            f"{_accuracies(own, moment)} (λ = {own[0]['arm'][3:]})"
            for own, moment in zip(best, ("before", "after"), strict=True)
        ]
        lines.append(
            f"| {density:g} | best fixed λ | {_ratios(best[0])} | {cells[0]} | {cells[1]} | "
            f"{len(best[0])} |"
        )
    return "\n".join(lines)


def short_table(rows: Sequence[Row]) -> str:
    lines = [
        "| epochs of search | learning rate | penalty | actual ÷ target | before | after |",
        "|---|---|---|---|---|---|",
    ]
    for epochs in LENGTHS:
        for arm, title in ((DEFAULT, "`l2`"), ("auto", "`auto`")):
            own = _of(rows, epochs=epochs, arm=arm)
            rate = next((row["plan"]["lr"] for row in own if "plan" in row), 0.0)
            cells = [_accuracies(own, moment) for moment in ("before", "after")]
            lines.append(
                f"| {epochs} | {rate:.3g} | {title} | {_ratios(own)} | {cells[0]} | {cells[1]} |"
            )
    return "\n".join(lines)


def cifar10_table(rows: Sequence[Row]) -> str:
    lines = [
        "| network | target | penalty | actual ÷ target | before | after | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    cases = dict.fromkeys((row["model"], row["density"]) for row in rows)
    for model, density in sorted(cases, key=lambda case: (case[0] != "resnet20", -case[1])):
        for arm, title in ((DEFAULT, "`l2`, default λ"), ("auto", "`auto`")):
            own = _of(rows, model=model, density=density, arm=arm)
            if own:
                cells = [_accuracies(own, moment) for moment in ("before", "after")]
                lines.append(
                    f"| `{model}` | {density:g} | {title} | {_ratios(own)} | {cells[0]} | "
                    f"{cells[1]} | {len(own)} |"
                )
    return "\n".join(lines)


TABLES = {"digits": digits_table, "short": short_table, "cifar10": cifar10_table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("protocol", nargs="?", default="digits", choices=TABLES)
    parser.add_argument("--images", type=Path, help="folder of CIFAR-10 images")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--no-runs", action="store_true", help="only write the table")
    parser.add_argument("--arms", nargs="*", help="only these")
    arguments = parser.parse_args()
    name = arguments.protocol
    if name == "cifar10" and arguments.images is None and not arguments.no_runs:
        parser.error("cifar10 needs --images DIR")
    planned = {"digits": digits, "short": short}.get(name, lambda: cifar10(arguments.images))
    if not arguments.no_runs:
        chosen = (row for row in planned() if row["arm"] in (arguments.arms or ARMS))
        LEDGER.complete(chosen, measure_arm, arguments.jobs)
    rows = _of(LEDGER.rows(), protocol=name)
    write_results(PAGE, f"density-{name}", TABLES[name](rows))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
