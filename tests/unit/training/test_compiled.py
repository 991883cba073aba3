"""With `--compile`, network and update are compiled once: no freeze or learning rate does it again.

What is compiled runs as it was traced, because only its number matters here; one test compiles in
earnest.
"""

import pytest
import torch
from tiny import PLAN, tiny_data, tiny_net

from gemkit import Plan, Runtime, load_plugins
from gemkit.core.events import Froze, StepEnded
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator
from gemkit.parts.scores import LearnedScores
from gemkit.pruning.finetune import finetune
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.scope import names_in_scope
from gemkit.pruning.search import search
from gemkit.pruning.update import update
from gemkit.testing.tiny import one_layer
from gemkit.training.optimizers import make_optimizer, set_lr

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
        own = self.update if getattr(what, "__code__", None) == update.__code__ else self.network

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


@pytest.mark.one_in(4)
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


@pytest.mark.parametrize("form", ["l1", "l2"])
def test_a_penalty_that_follows_the_density_is_part_of_the_graph(form, graphs):
    heard("gem_miner", regularizer=f"auto:{form}")
    assert 1 <= len(graphs.update) <= SCORES


def test_compiling_the_network_again_is_noticed(graphs, monkeypatch):
    """A careless freeze, after which weights lie in memory in another way."""
    freeze_ = MaskedNet.freeze_

    def careless(net, alive, shares, density):
        freeze_(net, alive, shares, density)
        for parameter in net.parameters.values():
            parameter.data = parameter.detach().contiguous()

    monkeypatch.setattr(MaskedNet, "freeze_", careless)
    heard("gradual_magnitude")
    assert len(graphs.network) > NETWORK


def updates(net, plan, *, compiled, by_number=False):
    """Take steps at a falling learning rate, with a freeze in between."""
    optimizer = make_optimizer(plan, net.groups(plan), compiled=compiled)
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


def net_of(pruner, **parts):
    model = tiny_net().to(memory_format=torch.channels_last)
    if pruner == "weights":
        return MaskedNet(model, prunable_names(model))
    recipe = REGISTRY.recipe(pruner, parts=parts)
    names = names_in_scope(recipe, model)
    return MaskedNet.learning(model, names, recipe, generator(0, "scores"))


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


@pytest.mark.parametrize(
    ("pruner", "graphs_of_it"), [("continuous_sparsification", 3), ("movement", RANKED + 1)]
)
def test_scores_beside_weights_keep_their_own_rate_when_compiled(pruner, graphs_of_it, graphs):
    plan = Plan(lr=0.1, score_lr=0.7, weight_decay=0.01)
    net = updates(net_of(pruner), plan, compiled=True)
    assert 1 <= len(graphs.update) <= graphs_of_it
    assert_close(net, updates(net_of(pruner), plan, compiled=False))
    slower = updates(net_of(pruner), plan.model_copy(update={"score_lr": 0.1}), compiled=False)
    with pytest.raises(AssertionError):
        assert_close(net, slower)


@pytest.mark.parametrize("structure", ["rows", "filters", {"name": "nm", "n": 1, "m": 2}])
def test_ranking_units_compiles_no_more_graphs_than_ranking_weights(structure, graphs):
    nets = [net_of("edge_popup", structure=structure) for _ in range(2)]
    plan = PLANS["sgd"]
    assert_close(updates(nets[0], plan, compiled=True), updates(nets[1], plan, compiled=False))
    assert 1 <= len(graphs.update) <= RANKED


def take_two(net, plan, *, compiled=True):
    """Take two steps: the first one, and one with momentum."""
    if compiled:
        net.compile_()
    optimizer = make_optimizer(plan, net.groups(plan), compiled=compiled)
    for step in range(2):
        for name, parameter in net.parameters.items():
            drawn = torch.randn(parameter.shape, generator=generator(step, name))
            parameter.grad = torch.empty_like(parameter).copy_(drawn)
        net.step(optimizer)
    return net


def small(pruner):
    model, recipe = one_layer(), REGISTRY.recipe(pruner)
    return MaskedNet.learning(model, ["1.weight"], recipe, generator(0, "scores"))


def test_ten_networks_of_one_process_are_all_compiled(graphs):
    for count in range(1, 10):
        take_two(small("gem_miner"), PLANS["sgd"])
        assert len(graphs.update) == SCORES * count
    adam = Plan(lr=0.01, optimizer="adam")
    torch.manual_seed(0)
    tenth = take_two(small("gem_miner"), adam)
    assert len(graphs.update) > SCORES * 9
    torch.manual_seed(0)
    assert_close(tenth, take_two(small("gem_miner"), adam, compiled=False))


@torch._dynamo.config.patch(recompile_limit=2)
def test_what_comes_after_a_ranking_is_compiled_for_every_network(graphs):
    for count in range(1, 5):
        take_two(small("edge_popup"), PLANS["sgd"])
        assert len(graphs.update) == 4 * count


def test_an_update_that_is_really_compiled_moves_the_same_scores():
    torch._dynamo.reset()
    net = updates(net_of("gem_miner"), PLANS["sgd"], compiled=True)
    assert_close(net, updates(net_of("gem_miner"), PLANS["sgd"], compiled=False))
