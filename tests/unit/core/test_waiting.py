"""A training step never synchronizes with the device.

These tests run without an accelerator: tensors claim not to be on the CPU, and every operation that
would synchronize on a real device is recorded.
"""

import pytest
import torch
from tiny import tiny_data, tiny_net
from torch.utils._python_dispatch import TorchDispatchMode

from gemkit import Plan, Runtime, load_plugins
from gemkit.core.selection import keep_top
from gemkit.core.tensors import generator
from gemkit.parts.scores import LearnedScores
from gemkit.pruning.freeze import freeze
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.scope import names_in_scope
from gemkit.training.device import make_fabric, place
from gemkit.training.trainer import Trainer

REGISTRY = load_plugins(only=[])
RUNTIME = Runtime(device="cpu")
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "is_nonzero")
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_")
FETCHING = ("cpu", "numpy", "tolist", "item", "to")
LEARNED = sorted(
    name for name in REGISTRY.pruners if isinstance(REGISTRY.recipe(name).scores, LearnedScores)
)


class Waits(TorchDispatchMode):
    """Records operations that would synchronize with the device."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        by_mask = name in INDEXING and any(
            one is not None and one.dtype == torch.bool for one in args[1]
        )
        if by_mask or any(word in name for word in WAITING):
            self.seen.append(name)
        return func(*args, **kwargs or {})


def trainer_of(pruner, **parts):
    fabric = make_fabric(RUNTIME)
    model = place(tiny_net(), fabric, RUNTIME)
    recipe = REGISTRY.recipe(pruner, parts=parts)
    names = names_in_scope(recipe, model)
    if isinstance(recipe.scores, LearnedScores):
        net = MaskedNet.learning(model, names, recipe, generator(0, "scores"))
        freeze(net, recipe, 0.5, net.learned.view, allow_ties=True)
    else:
        net = MaskedNet(model, names)
        freeze(net, recipe, 0.5, {name: w.abs() for name, w in net.effective.items()})
    trainer = Trainer(net, Plan(lr=0.1, score_lr=0.1), fabric, RUNTIME)
    trainer.nan_guard.at_once = False  # as on any device but the CPU
    return trainer


@pytest.fixture
def fetched(monkeypatch):
    """Record transfers from the device."""
    found = []
    for name in FETCHING:
        real = getattr(torch.Tensor, name)

        def recording(tensor, *given, name=name, real=real, **named):
            if name != "to" or "cpu" in map(str, (*given, *named.values())):
                found.append(name)
            return real(tensor, *given, **named)

        monkeypatch.setattr(torch.Tensor, name, recording)
    return found


@pytest.mark.parametrize("pruner", [*LEARNED, "magnitude"])
def test_no_step_waits_for_the_device(pruner, monkeypatch, fetched):
    no_step_waits(monkeypatch, fetched, pruner)


@pytest.mark.parametrize("structure", ["rows", "filters", {"name": "nm", "n": 1, "m": 2}])
def test_no_step_waits_for_units_to_be_ranked(structure, monkeypatch, fetched):
    no_step_waits(monkeypatch, fetched, "edge_popup", structure=structure)


def no_step_waits(monkeypatch, fetched, pruner, **parts):
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    trainer, batches = trainer_of(pruner, **parts), list(tiny_data().train.batches(8, seed=0))
    fetched.clear()
    with Waits() as waits:
        for batch in batches[:3]:
            trainer.step(batch, lr=0.1)
    assert waits.seen == fetched == []


def test_synchronizing_is_detected(monkeypatch, fetched):
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    scores, alive = {"a": torch.rand(50)}, {"a": torch.ones(50, dtype=torch.bool)}
    with Waits() as waits:
        scores["a"].sum().item()
        scores["a"].cpu().numpy()
        scores["a"].to(device=torch.device("cpu"))
        scores["a"].to(torch.float64)
    assert waits.seen == ["aten::_local_scalar_dense"]
    assert fetched == ["item", "cpu", "numpy", "to"]
    with Waits() as waits:
        scores["a"][alive["a"]] = torch.zeros(50)
        scores["a"][alive["a"]]
    assert waits.seen == ["aten::index_put_", "aten::index"]
    fetched.clear()
    keep_top(scores, alive, {("a",): 7})
    assert fetched == ["tolist"] * 2  # how many are alive, and whether all scores are finite
