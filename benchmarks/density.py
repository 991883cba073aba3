"""Penalties that follow the target density, against fixed ones and against no penalty at all.

    python -m benchmarks.density
    python -m benchmarks.density lengths
    python -m benchmarks.density terms
    python -m benchmarks.density settings
    python -m benchmarks.density gates
    python -m benchmarks.density cifar10 --images DIR    (DIR holds train/CLASS/*.jpg and test/)

All runs of a protocol have the same networks, data, seeds, learning rates and fine-tuning. `topk`
ranks the same scores globally, without a penalty, along the curve that `auto` follows; `popup` does
so with the unbounded scores of Global EP. The best fixed λ of a grid is chosen by validation
accuracy, separately before and after fine-tuning. `lengths` are searches of 5 to 150 epochs,
`terms` leaves out one term of the law after the other, `settings` has other optimizers, rates and
batch sizes, and `gates` other masks than a threshold. The last three have seeds of their own.
Results are appended to benchmarks/results/density.jsonl, and runs that are there already are not
repeated. The tables are written into docs/auto-lambda.md.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.newer import interval
from benchmarks.trial import RESULTS, measure
from gemkit import Recipe, load_plugins
from gemkit.builtin.auto import Auto
from gemkit.core.tensors import Tensors
from gemkit.parts.now import Now
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
ARMS = ("auto", DEFAULT, "topk", "popup", "auto l1", *(arm for arm in FIXED if arm != DEFAULT))
DENSITIES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.014)
LENGTHS = (5, 10, 20, 60, 150)
SEEDS = 5
OTHER_SEEDS = (200, 201, 202)
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


# --- the law without one of its terms -------------------------------------------------------------


class NoQuick(Auto):
    """Without an answer at once: K_p = 0."""

    quick = 0.0


class NoSlow(Auto):
    """Without the integral: K_i = 0."""

    slow = 0.0


class Level(Auto):
    """Without the rise after t₁."""

    relaxed = 1.0


class Exponential(Auto):
    """With exp(x) / 2 in place of sinh(x): never negative."""

    def price(self, level: Tensor) -> Tensor:
        """Return exp(x) / 2."""
        return level.exp() / 2


class FirstUnit(Auto):
    """With σ of the first step throughout."""

    def _measure_(self, gradients: list[Tensor], count: int, now: Now) -> None:
        variance = now.state["variance"].clone()
        super()._measure_(gradients, count, now)
        first = torch.where(now.step <= 1, now.state["variance"], variance)
        now.state["strength"].mul_((first / now.state["variance"].clamp_min(1e-30)).sqrt())
        now.state["variance"].copy_(first)


class PerLayer(Auto):
    """With σ of each layer in place of the network's: the price has its own unit in every layer."""

    def init_state(self, weights: Tensors) -> Tensors:
        """Add a mean square for each layer."""
        state = super().init_state(weights)
        return state | {"layers": state["variance"].new_zeros(len(weights))}

    def add_gradient_(self, gradients: Tensors, values: Tensors, now: Now) -> None:
        """Divide λ among the layers in proportion to their σ."""
        layers = now.state["layers"]
        sizes = layers.new_tensor([value.numel() for value in values.values()])
        norms = torch.stack(torch._foreach_norm(list(gradients.values()), 2)).to(layers.dtype)
        layers.lerp_(norms.square() / sizes, (1 / now.step).clamp(0.02, 1).to(layers.dtype))
        self._measure_(list(gradients.values()), int(sizes.sum()), now)
        unit = (layers / ((layers * sizes).sum() / sizes.sum()).clamp_min(1e-30)).sqrt()
        pulls = self.pull(list(values.values()))
        own = (now.state["strength"] * unit).to(pulls[0].dtype).unbind()
        torch._foreach_mul_(pulls, list(own))
        torch._foreach_add_(list(gradients.values()), pulls)


TERMS: dict[str, type[Auto]] = {
    "auto": Auto,
    "K_p = 0": NoQuick,
    "K_i = 0": NoSlow,
    "no rise after t₁": Level,
    "exp for sinh": Exponential,
    "σ of the first step": FirstUnit,
    "σ of each layer": PerLayer,
}
SETTINGS: dict[str, Row] = {
    "sgd, rate 0.5": {"training": {"lr": 0.5}},
    "sgd, rate 10": {"training": {"lr": 10.0}},
    "adamw, rate 0.01": {"training": {"optimizer": "adamw", "lr": 0.01}},
    "lion, rate 0.01": {"training": {"optimizer": "lion", "lr": 0.01}},
    "batches of 16": {"batch_size": 16},
    "batches of 256": {"batch_size": 256},
}
GATES = ("gates fixed", "gates auto", "bernoulli l2", "bernoulli auto")


def recipe_of(arm: str) -> Recipe:
    """Return Gem-Miner with the penalty of an arm."""
    kind, _, detail = arm.partition(" ")
    registry = load_plugins(only=[])
    if arm in TERMS and arm != "auto":
        recipe = registry.recipe("gem_miner", parts={"regularizer": "auto"})
        return recipe.model_copy(update={"regularizer": TERMS[arm]()})
    if arm in SETTINGS:
        return registry.recipe("gem_miner", parts={"regularizer": "auto"})
    if kind == "gates":
        penalty = {"fixed": "gate_sum", "auto": "auto_gates"}[detail]
        return registry.recipe("continuous_sparsification", parts={"regularizer": penalty})
    if kind == "popup":
        return registry.recipe("global_ep").model_copy(update={"schedule": Curve()})
    if kind == "bernoulli":
        return registry.recipe("gem_miner", parts={"rounding": kind, "regularizer": detail})
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


def lengths() -> Iterator[Row]:
    for density in (0.05, 0.02):
        for epochs in LENGTHS:
            usual = epochs == 10 and density == 0.05
            own = DIGITS | {"epochs": epochs, "finetune_epochs": 10 if usual else 0}
            for seed in range(SEEDS if usual else 3):
                for arm in (DEFAULT, "auto"):
                    yield {
                        "protocol": "lengths",
                        "arm": arm,
                        "density": density,
                        "seed": seed,
                    } | own


def others(protocol: str, arms: Sequence[str], densities: Sequence[float]) -> Iterator[Row]:
    own = DIGITS | {"epochs": 30, "finetune_epochs": 0}
    for seed in OTHER_SEEDS:
        for arm in arms:
            for density in densities:
                run = {"protocol": protocol, "arm": arm, "density": density, "seed": seed}
                yield own | run | SETTINGS.get(arm, {})


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
            ("no penalty, top-k of unbounded scores", "popup"),
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
    return "\n".join([*lines, "", *_differences(rows)])


def _differences(rows: Sequence[Row]) -> list[str]:
    """Compare `auto` with others seed by seed: mean and 95 % interval, before and after."""
    titles = ("default λ", "best fixed λ", "top-k of unbounded scores")
    lines = [f"| `auto` − | {' | '.join(titles)} |", "|---|---|---|---|"]
    for density in DENSITIES:
        here = _of(rows, density=density)
        for moment in ("before", "after"):
            rivals = [_of(here, arm=DEFAULT), _best(here, moment), _of(here, arm="popup")]
            own = {row["seed"]: row[moment] for row in _of(here, arm="auto") if moment in row}
            cells = [
                interval([own[one["seed"]] - one[moment] for one in rival if moment in one], "+")
                for rival in rivals
            ]
            lines.append(f"| {density:g}, {moment} | {' | '.join(cells)} |")
    return lines


def lengths_table(rows: Sequence[Row]) -> str:
    lines = [
        "| target | epochs | learning rate | penalty | actual ÷ target | before | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for density in (0.05, 0.02):
        for epochs in LENGTHS:
            for arm, title in ((DEFAULT, "`l2`"), ("auto", "`auto`")):
                own = _of(rows, epochs=epochs, arm=arm, density=density)
                if own:
                    rate = next((row["plan"]["lr"] for row in own if "plan" in row), 0.0)
                    lines.append(
                        f"| {density:g} | {epochs} | {rate:.3g} | {title} | {_ratios(own)} | "
                        f"{_accuracies(own, 'before')} | {len(own)} |"
                    )
    return "\n".join(lines)


def others_table(rows: Sequence[Row]) -> str:
    """One row for each arm: accuracy before fine-tuning, and actual ÷ target in brackets."""
    densities = sorted({row["density"] for row in rows}, reverse=True)
    lines = ["| | " + " | ".join(f"{density:g}" for density in densities) + " | seeds |"]
    lines.append("|---" * (len(densities) + 2) + "|")
    for arm in dict.fromkeys(row["arm"] for row in rows):
        groups = [_of(rows, arm=arm, density=density) for density in densities]
        cells = [f"{_accuracies(own, 'before')} [{_ratios(own)}]" for own in groups if own]
        lines.append(f"| {arm} | " + " | ".join(cells) + f" | {len(groups[0])} |")
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


TABLES = {
    "digits": digits_table,
    "lengths": lengths_table,
    "terms": others_table,
    "settings": others_table,
    "gates": others_table,
    "cifar10": cifar10_table,
}
PLANNED = {
    "digits": digits,
    "lengths": lengths,
    "terms": lambda: others("terms", list(TERMS), (0.05, 0.02, 0.014)),
    "settings": lambda: others("settings", list(SETTINGS), (0.05, 0.02)),
    "gates": lambda: others("gates", GATES, (0.1, 0.05, 0.02)),
}


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
    planned = PLANNED.get(name, lambda: cifar10(arguments.images))
    if not arguments.no_runs:
        chosen = (row for row in planned() if row["arm"] in (arguments.arms or [row["arm"]]))
        LEDGER.complete(chosen, measure_arm, arguments.jobs)
    rows = _of(LEDGER.rows(), protocol=name)
    write_results(PAGE, f"density-{name}", TABLES[name](rows))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
