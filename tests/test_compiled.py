"""With `--compile`, network and update are compiled once: no freeze or learning rate does it again.

What is compiled runs as it was traced, because only its number matters here; one test compiles in
earnest.
"""

import pytest
import torch
from tiny import PLAN, tiny_data, tiny_net

from gemkit import Plan, Runtime, load_plugins
from gemkit.engine import finetune, search
from gemkit.events import Froze, StepEnded
from gemkit.masking import MaskedNet
from gemkit.optimizers import make_optimizer, set_lr
from gemkit.parts import LearnedScores
from gemkit.tensors import generator, prunable_names
from gemkit.update import update

REGISTRY = load_plugins(only=[])
COMPILED = Runtime(device="cpu", compile=True)
NETWORK = 2
"""Graphs of a network: one for training and one for evaluation."""
WEIGHTS = 3
"""Graphs of an update: the first step, those with momentum, and those under a mask."""
SCORES = 2
"""The first step, and those with momentum."""
RANKED = 6 if torch.__version__ >= "2.15" else 8
"""The same before and after ranking, which is never traced, and in both layouts of its masks."""


class Graphs:
    """What was compiled, apart by what it belongs to."""

    def __init__(self):
        self.network, self.update = [], []

    def compile(self, real, what, **settings):
        own = self.update if what is update else self.network

        def collect(graph, inputs):
            own.append(graph)
            return graph.forward

        return real(what, **{**settings, "backend": collect})


@pytest.fixture
def graphs(monkeypatch):
    found, real = Graphs(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda what, **named: found.compile(real, what, **named))
    torch._dynamo.reset()
    return found


def heard(pruner, **parts):
    events = []
    ticket = search(
        REGISTRY.recipe(pruner, parts=parts),
        tiny_net(),
        tiny_data(),
        density=0.3,
        plan=PLAN,
        runtime=COMPILED,
        observers=[events.append],
        on_collapse="warn",
    )
    return ticket, events


def most(recipe):
    """How many graphs an update may take."""
    if not isinstance(recipe.scores, LearnedScores):
        return WEIGHTS
    return RANKED if recipe.rounding.spends_budget else SCORES


@pytest.mark.parametrize("pruner", REGISTRY.pruners)
def test_no_freeze_compiles_again(pruner, graphs):
    ticket, events = heard(pruner)
    assert any(isinstance(event, Froze) for event in events)
    trains = any(isinstance(event, StepEnded) for event in events)
    assert len(graphs.network) == (NETWORK if trains else 0)
    assert (1 if trains else 0) <= len(graphs.update) <= most(REGISTRY.recipe(pruner))
    torch._dynamo.reset()
    graphs.network.clear()
    graphs.update.clear()
    finetune(ticket, tiny_net(), tiny_data(), plan=PLAN, runtime=COMPILED)
    assert len(graphs.network) == NETWORK
    assert 1 <= len(graphs.update) <= WEIGHTS


def test_a_rounding_that_draws_compiles_no_more_graphs_than_ranks_do(graphs):
    heard("gem_miner", rounding="bernoulli")
    assert 1 <= len(graphs.update) <= RANKED


def test_compiling_the_network_again_is_noticed(graphs, monkeypatch):
    """A careless freeze, after which weights lie in memory in another way."""
    freeze_ = MaskedNet.freeze_

    def careless(net, alive, shares):
        freeze_(net, alive, shares)
        for parameter in net.parameters.values():
            parameter.data = parameter.detach().contiguous()

    monkeypatch.setattr(MaskedNet, "freeze_", careless)
    heard("gradual_magnitude")
    assert len(graphs.network) > NETWORK


def updates(net, plan, *, compiled, by_number=False):
    """Take steps at a falling learning rate, with a freeze in between."""
    optimizer = make_optimizer(plan, net.trainable(), compiled=compiled)
    if compiled:
        net.compile_()
    for step in range(6):
        set_lr(optimizer, rate := plan.lr / (step + 1))
        if by_number:
            optimizer.param_groups[0]["lr"] = rate
        if step == 3:
            alive = {
                name: torch.rand(q.shape, generator=generator(0, name)) < 0.7
                for name, q in net.alive.items()
            }
            net.freeze_(alive, {(name,): int(q.sum()) // 2 for name, q in alive.items()})
            net.clear_state(optimizer)
        for name, parameter in net.model.named_parameters():
            if parameter.requires_grad:
                drawn = torch.randn(parameter.shape, generator=generator(step, name))
                parameter.grad = torch.empty_like(parameter).copy_(drawn)
        net.step(optimizer)
    return net


PLANS = {
    "sgd": Plan(lr=0.1, weight_decay=0.01),
    "adamw": Plan(lr=0.01, optimizer="adamw", weight_decay=0.01),
}


def net_of(pruner):
    model = tiny_net().to(memory_format=torch.channels_last)
    names = prunable_names(model)
    if pruner == "weights":
        return MaskedNet(model, names)
    return MaskedNet.learning(model, names, REGISTRY.recipe(pruner), generator(0, "scores"))


def assert_close(one, other):
    for name, mask in one.mask.items():
        assert torch.equal(mask, other.mask[name]), name
        torch.testing.assert_close(one.effective[name], other.effective[name])
    for name, score in one.scores.items():
        torch.testing.assert_close(score, other.scores[name])
    assert all(parameter.grad is None for parameter in one.trainable())


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup", "weights"])
def test_a_compiled_update_is_the_same_at_every_learning_rate(pruner, plan, graphs):
    net = updates(net_of(pruner), plan, compiled=True)
    assert 1 <= len(graphs.update) <= {"gem_miner": SCORES, "weights": WEIGHTS}.get(pruner, RANKED)
    assert_close(net, updates(net_of(pruner), plan, compiled=False))


@pytest.mark.skipif(torch.__version__ < "2.10", reason="older torch takes numbers as inputs")
def test_a_learning_rate_that_is_a_number_would_be_noticed(graphs):
    updates(net_of("gem_miner"), PLANS["sgd"], compiled=True, by_number=True)
    assert len(graphs.update) > SCORES


def test_an_update_that_is_really_compiled_moves_the_same_scores():
    torch._dynamo.reset()
    net = updates(net_of("gem_miner"), PLANS["sgd"], compiled=True)
    assert_close(net, updates(net_of("gem_miner"), PLANS["sgd"], compiled=False))
