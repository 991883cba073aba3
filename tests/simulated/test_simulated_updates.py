"""Updates take few kernels and never wait for the device, and it finds what the CPU finds."""

import pytest
import torch
from tiny import tiny_net
from torch import nn

from benchmarks import kernels
from gemkit import Plan, load_plugins
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator
from gemkit.parts.scores import LearnedScores
from gemkit.pruning.freeze import freeze
from gemkit.pruning.masked import MaskedNet
from gemkit.testing import simulated
from gemkit.training import optimizers

REGISTRY = load_plugins(only=[])
CPU, DEVICE = torch.device("cpu"), simulated.install()
PLANS = {
    "sgd": Plan(lr=0.1, weight_decay=0.01),
    "adamw": Plan(lr=0.01, optimizer="adamw", weight_decay=0.01),
}
LEARNED = sorted(
    name for name in REGISTRY.pruners if isinstance(REGISTRY.recipe(name).scores, LearnedScores)
)


def pruned(pruner, model):
    """A network after a freeze to one half."""
    base, _, rounding = pruner.partition(", ")
    parts = {"rounding": rounding} if rounding else {}
    names, recipe = prunable_names(model), REGISTRY.recipe(base, parts=parts)
    if not isinstance(recipe.scores, LearnedScores):
        net = MaskedNet(model, names)
        freeze(net, recipe, 0.5, {name: w.abs() for name, w in net.effective.items()})
        return net
    net = MaskedNet.learning(model, names, recipe, generator(0, "scores"))
    freeze(net, recipe, 0.5, recipe.scores.view(net.scores))
    return net


def updated(pruner, plan, device, model=None):
    """Take three updates with the same gradients everywhere; return the net and what was seen."""
    model = (model or tiny_net()).to(memory_format=torch.channels_last).to(device)
    net = pruned(pruner, model)
    optimizer = optimizers.make_optimizer(plan, net.trainable())
    with simulated.watched() as seen:
        for step in range(3):
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    drawn = torch.randn(parameter.shape, generator=generator(step, name))
                    parameter.grad = torch.empty_like(parameter).copy_(drawn)
            net.step(optimizer)
    return net, seen


def on_host(tensors):
    return {name: tensor.detach().to("cpu") for name, tensor in tensors.items()}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("pruner", [*LEARNED, "gem_miner, bernoulli", "magnitude"])
def test_no_update_waits_for_the_device_and_it_finds_what_the_cpu_finds(pruner, plan):
    there, seen = updated(pruner, plan, DEVICE)
    here, _ = updated(pruner, plan, CPU)
    assert seen.waits == []
    for name, weight in on_host(there.effective).items():
        assert torch.equal(weight, here.effective[name]), name
    for name, score in on_host(there.scores).items():
        assert torch.equal(score, here.scores[name]), name


def deeper(layers):
    return nn.Sequential(*(nn.Conv2d(4, 4, 3 if at % 2 else 1) for at in range(layers)))


@pytest.mark.parametrize(
    "pruner", ["gem_miner", "magnitude", "gem_miner, bernoulli", "continuous_sparsification"]
)
def test_the_number_of_kernels_does_not_depend_on_the_number_of_layers(pruner):
    few, many = (updated(pruner, PLANS["sgd"], DEVICE, deeper(n))[1].kernels for n in (2, 9))
    for seen in (few, many):
        for made_here in ("copy_", "empty_like", "_to_copy"):
            seen.pop(made_here, None)  # of the gradients above
    assert few == many
    assert sum(few.values()) <= 3 * (26 if pruner == "continuous_sparsification" else 16)


def test_a_penalty_that_follows_the_density_does_not_wait_for_the_device():
    recipe = REGISTRY.recipe("gem_miner", parts={"regularizer": "auto"})
    model = tiny_net().to(DEVICE)
    net = MaskedNet.learning(model, prunable_names(model), recipe, generator(0, "scores"))
    optimizer = optimizers.make_optimizer(PLANS["sgd"], net.trainable())
    with simulated.watched() as seen:
        for parameter in net.parameters.values():
            parameter.grad = torch.ones_like(parameter)
        net.step(optimizer)
    assert seen.waits == []
    assert float(net.learned.state["strength"].to("cpu")) > 0


def test_a_kernel_per_layer_would_be_noticed(monkeypatch):
    def by_layer(self, scores):
        for score in scores.values():
            score.clamp_(0, 1)

    monkeypatch.setattr(type(REGISTRY.recipe("gem_miner").scores), "project_", by_layer)
    few, many = (updated("gem_miner", PLANS["sgd"], DEVICE, deeper(n))[1].count for n in (2, 9))
    assert many > few + 3 * (9 - 2)


@pytest.mark.parametrize("pruner", kernels.PRUNERS)
def test_updates_of_a_residual_network_take_few_kernels(pruner):
    row = kernels.measure("resnet20", pruner)
    ranked = 6 * row["layers"] if pruner in ("edge_popup", "global_ep") else 0
    both = 10 if pruner == "continuous_sparsification" else 0  # weights and gates
    assert row["kernels"] <= 16 + ranked + both
    assert row["waits"] == 0
