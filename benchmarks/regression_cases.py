"""What benchmarks.regression runs: a small network, few images, and every pruner and part."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from gemkit import Data, Plan, Recipe, Registry, load_plugins
from gemkit.data.embedded import Digits
from gemkit.data.fingerprint import SPLITS
from gemkit.data.source import Source, TensorSource
from gemkit.training.task import Task, task_from

PLUGINS = Path(__file__).parent.parent / "plugins"
PLAN = Plan(epochs=6, batch_size=48)
"""Three steps an epoch, the last one with fewer images."""
IMAGES = 120
_TWO_ROUNDS = {"schedule.fraction": 0.5}
_WARM = {"rewind.weights": 1.5, "rewind.clock": 1.5}
_PULL = {"regularizer.weight": 2e-3}
_GATES = {"regularizer.weight": 3e-3}
_OFTEN = {"schedule.every": 3}
SMALLER: dict[str, dict[str, Any]] = {
    "gem_miner": _PULL,
    "gradual_ep_l2": _PULL,
    "power": _PULL,
    "imp_short_cold": _TWO_ROUNDS | {"schedule.every": 3},
    "imp_short_warm": _TWO_ROUNDS | _WARM | {"schedule.every": 3},
    "imp_long_cold": _TWO_ROUNDS,
    "imp_long_warm": _TWO_ROUNDS | _WARM,
    "lr_rewinding": _TWO_ROUNDS,
    "grasp": {"scores.per_class": 5},
    "synflow": {"schedule.rounds": 5},
    "force": {"scores.rounds": 3},
    "iter_snip": {"schedule.rounds": 3},
    "lamp": _TWO_ROUNDS,
    "rigl": _OFTEN,
    "set": _OFTEN,
    "continuous_sparsification": {"scores.start": 0.02, "regularizer.weight": 1e-3},
}
"""Options for short searches: strong penalties, few rounds."""


class Case(NamedTuple):
    """A pruner with changes, and the plan it trains by."""

    pruner: str
    parts: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    plan: Mapping[str, Any] = {}
    density: float = 0.3
    objective: str = "cross_entropy"

    def recipe(self) -> Recipe:
        """Resolve the pruner, its parts and options."""
        return registry().recipe(self.pruner, parts=self.parts, options=self.options)

    def task(self) -> Task:
        """Resolve the objective of the run."""
        return task_from(registry(), self.objective)

    def data(self) -> Data:
        """Return the images, with one target for each class where targets are no classes."""
        return images(classes=self.task().objective.targets == "classes")

    def search_plan(self, plan: Plan) -> Plan:
        """Fix the rate of uniform scores under SGD: its default is for longer searches."""
        recipe = self.recipe()
        if recipe.scores.name != "uniform" or plan.optimizer != "sgd":
            return plan
        return plan.model_copy(update={"lr" if recipe.trained == "scores" else "score_lr": 2.0})


def _gem(options: Mapping[str, Any] = _PULL, **parts: Any) -> Case:  # noqa: ANN401
    return Case("gem_miner", parts, options)


def _trained(pruner: str, **plan: Any) -> Case:  # noqa: ANN401
    return Case(pruner, options=SMALLER.get(pruner, {}), plan=plan)


def _popup(options: Mapping[str, Any] = _PULL, **parts: Any) -> Case:  # noqa: ANN401
    return Case("edge_popup", parts, options)


VARIANTS = {
    "gem_miner, l1": _gem(regularizer="l1"),
    "gem_miner, no regularizer": _gem({}, regularizer="none"),
    "gem_miner, bernoulli": _gem(rounding="bernoulli"),
    "gem_miner, topk": _gem(rounding="topk"),
    "gem_miner, open": _gem(rounding="open"),
    "gem_miner, uniform": _gem(allocation="uniform"),
    "gem_miner, erk": _gem(allocation="erk"),
    "gem_miner, smart_ratio": _gem(allocation="smart_ratio"),
    "gem_miner, densities": _gem(
        allocation={"name": "densities", "densities": [0.5, 0.2, 0.5, 0.4]}
    ),
    "gem_miner, linear": _gem(schedule="linear"),
    "gem_miner, cubic": _gem(schedule="cubic"),
    "gem_miner, paper timing": _gem({**_PULL, "schedule.timing": "paper"}),
    "gem_miner, once": _gem(schedule={"name": "once", "after": 0.5}),
    "gem_miner, kaiming_normal": _gem(init="kaiming_normal"),
    "gem_miner, kaiming_uniform": _gem(init="kaiming_uniform"),
    "gem_miner, as_built": _gem(init="as_built"),
    "gem_miner, alive": _gem({**_PULL, "finalize": "alive"}),
    "gem_miner, inverted": _gem({**_PULL, "invert": True}),
    "gem_miner, adam": _trained("gem_miner", optimizer="adam"),
    "gem_miner, adamw": _trained("gem_miner", optimizer="adamw", weight_decay=0.1),
    "gem_miner, plain sgd": _trained("gem_miner", momentum=0.0, weight_decay=0.01),
    "gem_miner, nesterov": _trained("gem_miner", nesterov=True, warmup_epochs=1),
    "edge_popup, l1": _popup(regularizer="l1"),
    "edge_popup, l2": _popup(regularizer="l2"),
    "edge_popup, open": _popup({}, rounding="open"),
    "edge_popup, adam": _trained("edge_popup", optimizer="adam"),
    "imp_long_warm, adam": _trained("imp_long_warm", optimizer="adam"),
    "random, cubic": Case("random", {"schedule": "cubic"}),
    "random, linear": Case("random", {"schedule": "linear"}),
    "gem_miner, rows": _gem(structure="rows", allocation="uniform"),
    "gem_miner, filters": _gem(structure="filters", allocation="uniform"),
    "gem_miner, nm": _gem(structure="nm")._replace(density=0.5),
    "edge_popup, rows": _popup({}, structure="rows"),
    "edge_popup, filters": _popup({}, structure="filters"),
    "edge_popup, nm": _popup({}, structure="nm")._replace(density=0.5),
    "magnitude, filters": Case("gradual_magnitude", {"structure": "filters"}),
    "gem_miner, kl": _gem(objective="kl"),
    "gem_miner, smoothed": _gem({**_PULL, "objective.smoothing": 0.1}, objective="cross_entropy"),
    "gem_miner, both": _gem({**_PULL, "train": "both"}),
    "gem_miner, skip": _gem({**_PULL, "prunable.skip": ["stem.*"]}),
    "gem_miner, gate_sum": _gem(_GATES, regularizer="gate_sum"),
    "gem_miner, auto": _gem({}, regularizer="auto"),
    "gem_miner, auto:l1": _gem({}, regularizer="auto:l1"),
    "continuous_sparsification, auto_gates": Case(
        "continuous_sparsification", {"regularizer": "auto_gates"}
    ),
    "lamp, snip": Case("lamp", {"scores": {"name": "lamp", "of": "snip"}}, _TWO_ROUNDS),
    "rigl, filters": Case("rigl", {"structure": "filters"}, _OFTEN, density=0.5),
    "rigl, adam": Case("rigl", options=_OFTEN, plan={"optimizer": "adam"}),
    "movement, adam": Case("movement", plan={"optimizer": "adam"}),
    "gem_miner, mse": Case("gem_miner", options=_PULL, objective="mse"),
    "snip, mse": Case("snip", objective="mse"),
    "grasp, binary": Case("grasp", objective="binary"),
    "rigl, binary": Case("rigl", options=_OFTEN, objective="binary"),
}
"""One change each, so that every part and every optimizer is in some case."""


@cache
def registry() -> Registry:
    """Load the built-in plugins and those under plugins/, no installed ones."""
    files = [*PLUGINS.glob("*/gemkit_*.py"), *PLUGINS.glob("*/gemkit_*/[!_]*.py")]
    return load_plugins(files=sorted(files), only=[])


def cases() -> dict[str, Case]:
    """Return every registered pruner under its name, and the variants."""
    pruners = {name: Case(name, options=SMALLER.get(name, {})) for name in registry().pruners}
    return pruners | VARIANTS


@cache
def images(*, classes: bool = True) -> Data:
    """Take the first images of the embedded digits; training crops them at random.

    Without `classes`, targets are ten numbers, one of them 1.
    """
    data = Digits().load(None)
    if not classes:
        sources = [getattr(data, split) for split in SPLITS]
        rows = [replace(own, labels=one_hot(own.labels, 10).double()) for own in sources]
        data = replace(data, classes=None, **dict(zip(SPLITS, rows, strict=True)))

    def few(source: Source) -> TensorSource:
        assert isinstance(source, TensorSource)
        return replace(source, images=source.images[:IMAGES], labels=source.labels[:IMAGES])

    return replace(data, train=few(data.train), validation=few(data.validation))


class Network(nn.Module):
    """Convolutions with batch norm, a residual connection and a linear layer: 236 weights.

    Double precision, so that other last bits on another machine do not change a mask.
    """

    def __init__(self) -> None:
        super().__init__()
        double = torch.float64  # also for drawing weights, which differ by machine in float32
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False, dtype=double)
        self.norm = nn.BatchNorm2d(4, dtype=double)
        self.wide = nn.Conv2d(4, 4, 3, padding=1, bias=False, dtype=double)
        self.wide_norm = nn.BatchNorm2d(4, dtype=double)
        self.point = nn.Conv2d(4, 4, 1, bias=False, dtype=double)
        self.point_norm = nn.BatchNorm2d(4, dtype=double)
        self.head = nn.Linear(4, 10, dtype=double)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        trunk = torch.relu(self.norm(self.stem(images)))
        branch = torch.relu(self.wide_norm(self.wide(trunk)))
        joined = torch.relu(trunk + self.point_norm(self.point(branch)))
        logits: Tensor = self.head(joined.mean(dim=(2, 3)))
        return logits


def network() -> nn.Module:
    """Build the network, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network()
