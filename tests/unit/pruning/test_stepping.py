"""One step: every score moves as its parts say, pruned weights stay zero, ranks are exact."""

import pytest
import torch
import torch.nn.functional as F
from tiny import tiny_data, tiny_net
from torch import nn
from torch.utils.checkpoint import checkpoint

from gemkit import Plan, load_plugins
from gemkit.builtin.regularizers import L2
from gemkit.builtin.roundings import Threshold
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator
from gemkit.parts.regularizer import Regularizer
from gemkit.parts.rounding import Rounding
from gemkit.pruning.masked import MaskedNet
from gemkit.training.optimizers import make_optimizer

REGISTRY = load_plugins(only=[])


class Odd(nn.Module):
    """A network with a weight that is used twice and one that is not used at all."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.twice = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.never = nn.Linear(5, 4)
        self.head = nn.Linear(6, 3)
        self.head_again = nn.Linear(6, 3)
        self.head_again.weight = self.head.weight

    def forward(self, x, cut=lambda part, x: part(x)):
        x = cut(self.twice, F.relu(cut(self.twice, F.relu(self.first(x)))))
        x = x.mean(dim=(2, 3))
        return self.head(x) + self.head_again(x.square())


def scored(recipe, model=None):
    model = (model or Odd()).to(memory_format=torch.channels_last).train()
    return MaskedNet.learning(model, prunable_names(model), recipe, generator(0, "scores"))


def train(net, plan, *, steps=4, forward=None, dtype=torch.float32):
    """Take steps by hand, with a freeze in the middle."""
    optimizer = make_optimizer(plan, net.trainable())
    batches = list(tiny_data().train.batches(8, seed=0))
    for step in range(steps):
        if step == steps // 2:
            some = {
                name: torch.rand(q.shape, generator=generator(1, name)) < 0.7
                for name, q in net.alive.items()
            }
            net.freeze_(some, {(name,): int(q.sum()) // 2 for name, q in some.items()})
            net.clear_state(optimizer)
        images, labels = batches[step % len(batches)]
        loss = F.cross_entropy((forward or net.model)(images.to(dtype)), labels)
        loss.backward()
        net.step(optimizer)
    return net


def assert_same(one, other):
    for name, weight in one.effective.items():
        assert torch.equal(weight, other.effective[name]), name
    for name, mask in one.mask.items():
        assert torch.equal(mask, other.mask[name]), name
    for name, score in one.scores.items():
        assert torch.equal(score, other.scores[name]), name


@torch.no_grad()
def begin(model, init):
    """Draw the weights of a model anew, as a search does."""
    names = prunable_names(model)
    drawn = REGISTRY.build("initializers", init).draw(
        {name: model.get_parameter(name) for name in names}, generator(0, "weights")
    )
    for name in names:
        model.get_parameter(name).copy_(drawn[name])
    return model


@pytest.mark.parametrize("init", ["signed_constant", "kaiming_normal"])
@pytest.mark.parametrize("pruner", ["edge_popup", "gem_miner"])
def test_weights_that_die_are_kept_also_after_a_restart(pruner, init):
    model = begin(odd_in_every_layout(), init)
    start = {name: model.get_parameter(name).detach().clone() for name in prunable_names(model)}
    net = scored(REGISTRY.recipe(pruner), model)
    some = {name: torch.arange(q.numel()).view(q.shape) % 2 == 0 for name, q in net.alive.items()}
    net.freeze_(some, {(name,): 1 for name in some})
    saved = {**net.state_dict(), "free": {name: w.contiguous() for name, w in net.weights.items()}}
    again = scored(REGISTRY.recipe(pruner), odd_in_every_layout())
    again.load_state_dict(saved)
    assert_same(net, again)
    for one in (net, again):
        for name, weight in one.weights.items():
            assert torch.equal(weight, start[name]), name
            assert torch.equal(one.learned.free[name], weight * some[name]), name


def test_what_belongs_to_a_layer_lies_in_memory_as_its_weight_does():
    """Otherwise CUDA takes the tensors of a list one by one."""
    net = train(scored(REGISTRY.recipe("gem_miner"), Odd()), PLANS["sgd"])
    assert not net.parameters["first.weight"].is_contiguous()
    for name, weight in net.parameters.items():
        learned = net.learned
        for tensors in (learned.scores, learned.free, learned.now.alive, net.alive, net.weights):
            assert tensors[name].stride() == weight.stride(), name


def test_weights_of_one_magnitude_rest_in_a_bit_each():
    net = scored(REGISTRY.recipe("gem_miner"), begin(Odd(), "signed_constant"))
    bits = {name: packed.values.nbytes for name, packed in net._rest.items()}
    assert bits == {name: -(-weight.numel() // 8) for name, weight in net.parameters.items()}


@pytest.mark.parametrize("careless", ["contiguous", "transposed"])
def test_a_gradient_that_lies_otherwise_in_memory_moves_the_same_scores(careless):
    """Fused optimizers on a CPU walk through memory, and would mix up entries."""
    nets = [scored(REGISTRY.recipe("gem_miner")) for _ in range(2)]
    for net, strange in zip(nets, (False, True), strict=True):
        optimizer = make_optimizer(PLANS["sgd"], net.trainable())
        for _ in range(2):
            for name, weight in net.parameters.items():
                gradient = torch.randn(weight.shape, generator=generator(0, name))
                weight.grad = torch.empty_like(weight).copy_(gradient)
                if strange:
                    flipped = gradient.transpose(0, 1).contiguous().transpose(0, 1)
                    weight.grad = gradient if careless == "contiguous" else flipped
            net.step(optimizer)
    assert_same(*nets)


def test_scores_that_change_what_they_begin_from_do_not_change_the_weights(monkeypatch):
    recipe = REGISTRY.recipe("edge_popup")
    drawn = type(recipe.scores).init

    def careless(self, weights, rng):
        scores = drawn(self, weights, rng)
        for weight in weights.values():
            weight.zero_()
        return scores

    expected = scored(recipe)
    monkeypatch.setattr(type(recipe.scores), "init", careless)
    assert_same(scored(recipe), expected)


RECIPES = {
    "gem_miner": {},
    "edge_popup": {},
    "global_ep": {},
    "gradual_ep_l2": {},
    "gem_miner l1": {"regularizer": "l1"},
    "gem_miner none": {"regularizer": "none"},
    "gem_miner bernoulli": {"rounding": "bernoulli"},
    "gem_miner open": {"rounding": "open"},
}
PLANS = {
    "sgd": Plan(lr=0.3, weight_decay=0.01),
    "without momentum": Plan(lr=0.3, momentum=0),
    "nesterov": Plan(lr=0.3, nesterov=True),
    "adam": Plan(lr=0.05, optimizer="adam", weight_decay=0.01),
    "adamw": Plan(lr=0.05, optimizer="adamw", weight_decay=0.01),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_score_moves_that_something_pulls_on(recipe, plan):
    made = REGISTRY.recipe(recipe.split()[0], parts=RECIPES[recipe])
    start, net = scored(made), train(scored(made), plan)
    for name in net.scores:
        moved = not torch.equal(net.scores[name], start.scores[name])
        pulled = made.regularizer.name != "none" or plan.weight_decay
        assert moved == (name != "never.weight" or bool(pulled))
    assert all(tensor.grad is None for tensor in (*net.trainable(), *net.parameters.values()))


def assert_pruned_weights_are_zero(net):
    pruned = {name: net.effective[name][~alive] for name, alive in net.alive.items()}
    assert sum(map(len, pruned.values())) > 0
    assert all(weights.count_nonzero() == 0 for weights in pruned.values())


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_pruned_weights_stay_zero(plan):
    net = train(MaskedNet(Odd(), prunable_names(Odd())), plan)
    assert_pruned_weights_are_zero(net)
    for kept, name in zip(net._kept, net.parameters, strict=True):
        assert kept.stride() == net.parameters[name].stride()


class Noisy(torch.optim.SGD):
    """Moves every weight a little, whatever its gradient says."""

    @torch.no_grad()
    def step(self):
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(1)


def test_the_mask_is_applied_again_whatever_the_optimizer_did():
    net = MaskedNet(Odd(), prunable_names(Odd()))
    some = {name: torch.arange(q.numel()).view(q.shape) % 2 == 0 for name, q in net.alive.items()}
    net.freeze_(some, {})
    net.step(Noisy(net.trainable(), lr=0.1))
    assert_pruned_weights_are_zero(net)
    assert all((net.effective[name][alive] != 0).all() for name, alive in some.items())


class Sparse(nn.Linear):
    """A layer whose weight has gaps in memory: every other column of a wider one."""

    def __init__(self, inputs, outputs):
        super().__init__(2 * inputs, outputs)
        self.weight = nn.Parameter(self.weight.detach()[:, ::2])


def odd_in_every_layout():
    model = Odd().to(memory_format=torch.channels_last)
    model.first.weight.data = model.first.weight.data.contiguous()
    model.head = Sparse(6, 3)
    return model


@pytest.mark.parametrize("plan", ["sgd", "nesterov", "adamw"])
@pytest.mark.parametrize("recipe", [*RECIPES, "weights"])
def test_how_weights_lie_in_memory_changes_nothing(recipe, plan):
    """One network has gaps and several layouts, the other is contiguous."""

    def trained(model):
        model = model.double()
        names = prunable_names(model)
        if recipe == "weights":
            return train(MaskedNet(model, names), PLANS[plan], dtype=torch.float64)
        made = REGISTRY.recipe(recipe.split()[0], parts=RECIPES[recipe])
        net = MaskedNet.learning(model, names, made, generator(0, "scores"))
        return train(net, PLANS[plan], dtype=torch.float64)

    strange, plain = odd_in_every_layout(), odd_in_every_layout()
    for module in plain.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight = nn.Parameter(module.weight.detach().contiguous())
    strange, plain = trained(strange), trained(plain)
    assert not strange.parameters["twice.weight"].is_contiguous()
    assert plain.parameters["twice.weight"].is_contiguous()
    for name, mask in plain.mask.items():
        assert torch.equal(strange.mask[name], mask)
        torch.testing.assert_close(strange.effective[name], plain.effective[name])
        assert torch.equal(strange.effective[name], strange.weights[name] * strange.mask[name])
    for name, score in plain.scores.items():
        torch.testing.assert_close(strange.scores[name], score)


class OwnL2(Regularizer):
    """The square of every score, by its penalty alone."""

    name = "own_l2"
    weight: float = 0.05

    def penalty(self, values, now):
        return self.weight * sum(value.square().sum() for value in values.values())


class OwnThreshold(Rounding):
    """One half is the threshold, for the whole network at once."""

    name = "own_threshold"
    needs_unit_interval = True

    def masks(self, view, now):
        assert list(view) == list(now.alive) == prunable_names(Odd())
        return {name: score > 0.5 for name, score in view.items()}


def test_parts_that_bring_no_closed_form_learn_the_same():
    recipe = REGISTRY.recipe("gem_miner")
    expected = train(
        scored(recipe.model_copy(update={"regularizer": L2(weight=0.05)})), PLANS["sgd"]
    )
    own = {"regularizer": OwnL2(), "rounding": OwnThreshold()}
    net = train(scored(recipe.model_copy(update=own)), PLANS["sgd"])
    for name, score in expected.scores.items():
        torch.testing.assert_close(net.scores[name], score)


class Sloped(Threshold):
    """A rounding through which gradients pass where the mask is one, halved."""

    name = "sloped"

    def slope(self, view, masks, now):
        return {name: mask * 0.5 for name, mask in masks.items()}


def test_the_slope_of_a_rounding_is_taken_at_the_mask_of_the_forward_pass():
    recipe = REGISTRY.recipe("gem_miner", parts={"regularizer": "none"})
    net = scored(recipe.model_copy(update={"rounding": Sloped()}), tiny_net())
    plain = scored(recipe, tiny_net())
    mask, start = net.mask, {name: score.clone() for name, score in net.scores.items()}
    images, labels = next(iter(tiny_data().train.batches(8, seed=0)))
    for each in (net, plain):
        optimizer = torch.optim.SGD(each.trainable(), lr=1e-3)  # too short to reach any bound
        loss = F.cross_entropy(each.model(images), labels)
        loss.backward()
        each.step(optimizer)
    for name, old in start.items():
        inside = (old > 0.01) & (old < 0.99)
        expected = (plain.scores[name] - old) * mask[name] * 0.5
        torch.testing.assert_close(
            (net.scores[name] - old)[inside], expected[inside], rtol=1e-2, atol=1e-7
        )


def test_layers_that_share_a_budget_are_rounded_together():
    """Two groups of two layers each: neither one per layer nor one for all."""
    net = scored(REGISTRY.recipe("edge_popup"), tiny_net())
    a, b, c, d = net.scores
    net.freeze_(net.alive, {(a, d): 50, (b, c): 20})
    optimizer = make_optimizer(PLANS["sgd"], net.trainable())
    for images, labels in tiny_data().train.batches(8, seed=0):
        loss = F.cross_entropy(net.model(images), labels)
        loss.backward()
        net.step(optimizer)
        used = {name: weight != 0 for name, weight in net.effective.items()}
        assert used[a].sum() + used[d].sum() == 50
        assert used[b].sum() + used[c].sum() == 20
        assert all(torch.equal(used[name], mask) for name, mask in net.mask.items())


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup"])
def test_checkpointing_changes_nothing(pruner, reentrant):
    recipe = REGISTRY.recipe(pruner)
    net, plain = scored(recipe), scored(recipe)

    def forward(images):
        return net.model(images, lambda part, x: checkpoint(part, x, use_reentrant=reentrant))

    train(net, PLANS["sgd"], forward=forward)
    assert_same(net, train(plain, PLANS["sgd"]))
