"""One step: scores move in pieces, layers are rounded as their parts say, ranks are exact."""

import pytest
import torch
import torch.nn.functional as F
from tiny import tiny_data, tiny_net
from torch import nn
from torch.utils.checkpoint import checkpoint

from gemkit import Plan, load_plugins, pieces
from gemkit.builtin.regularizers import L2
from gemkit.builtin.roundings import Threshold
from gemkit.masking import MaskedNet
from gemkit.parts import Regularizer, Rounding
from gemkit.scored import ScoredNet
from gemkit.tensors import generator, prunable_names
from gemkit.training import make_optimizer

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
    return ScoredNet(model, prunable_names(model), recipe, generator(0, "scores"))


def train(net, plan, *, steps=4, forward=None):
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
        with net.passing(images, optimizer):
            loss = F.cross_entropy((forward or net.model)(images), labels)
            loss.backward()
            net.step(optimizer)
    net.settle_()
    return net


def assert_same(one, other):
    for name, weight in one.effective.items():
        assert torch.equal(weight, other.effective[name]), name
    if isinstance(one, ScoredNet):
        for name, score in one.raw_scores.items():
            assert torch.equal(score, other.raw_scores[name]), name
            assert torch.equal(one.mask[name], other.mask[name]), name


@pytest.mark.parametrize("pruner", ["edge_popup", "gem_miner"])
def test_weights_that_all_live_are_kept_once_also_after_a_restart(pruner):
    net = scored(REGISTRY.recipe(pruner))
    saved = {**net.state(), "free": {name: w.contiguous() for name, w in net.weights.items()}}
    again = scored(REGISTRY.recipe(pruner))
    again.restore_(saved)
    for one in (net, again):
        for name, weight in one.weights.items():
            assert one._standing[name].parts.living().data_ptr() == weight.data_ptr(), name
            assert weight.stride() == one.parameters[name].stride(), name
    some = {name: torch.arange(q.numel()).view(q.shape) % 2 == 0 for name, q in net.alive.items()}
    before = {name: weight.clone() for name, weight in net.weights.items()}
    net.freeze_(some, {(name,): 1 for name in some})
    for name, weight in net.weights.items():
        assert torch.equal(weight, before[name]), "what dies is kept"


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
        moved = not torch.equal(net.raw_scores[name], start.raw_scores[name])
        pulled = made.regularizer.name != "none" or plan.weight_decay
        assert moved == (name != "never.weight" or bool(pulled))
    assert all(tensor.grad is None for tensor in (*net.scores.values(), *net.parameters.values()))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_pruned_weights_stay_zero(plan):
    net = train(MaskedNet(Odd(), prunable_names(Odd())), plan)
    pruned = {name: net.effective[name][~alive] for name, alive in net.alive.items()}
    assert sum(map(len, pruned.values())) > 0
    assert all(weights.count_nonzero() == 0 for weights in pruned.values())


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
@pytest.mark.parametrize("recipe", RECIPES)
def test_pieces_change_nothing(recipe, plan, monkeypatch):
    """Scores move in pieces that fit the cache, whatever way a layer lies in memory."""
    made = REGISTRY.recipe(recipe.split()[0], parts=RECIPES[recipe])

    def learned(layers):
        model = odd_in_every_layout()
        names = prunable_names(model)
        net = ScoredNet(model, names, made, generator(0, "scores"))
        assert (len(net.trainable()) > len(names)) == (layers == "cut")
        return train(net, PLANS[plan])

    whole = learned("whole")
    monkeypatch.setattr(pieces, "PIECE", 48)
    cut = learned("cut")
    for name, score in whole.raw_scores.items():
        # Not to the bit: the last entries of a tensor take another way through the processor.
        torch.testing.assert_close(cut.raw_scores[name], score, rtol=1e-6, atol=1e-6)
        assert torch.equal(cut.mask[name], whole.mask[name])
        torch.testing.assert_close(cut.effective[name], whole.effective[name], rtol=0, atol=0)
        assert torch.equal(cut.effective[name], cut.weights[name] * cut.mask[name])


class OwnL2(Regularizer):
    """The square of every score, by its penalty alone."""

    name = "own_l2"
    weight: float = 0.05

    def penalty(self, scores):
        return self.weight * sum(score.square().sum() for score in scores.values())


class LayerL2(OwnL2):
    """The same, asked for layer by layer."""

    name = "layer_l2"
    scope = "layer"


class OwnThreshold(Rounding):
    """One half is the threshold, for the whole network at once."""

    name = "own_threshold"
    needs_unit_interval = True

    def masks(self, view, alive, shares, rng):
        assert list(view) == list(alive) == prunable_names(Odd())
        return {name: score > 0.5 for name, score in view.items()}.items()


@pytest.mark.parametrize("regularizer", [OwnL2(), LayerL2()])
def test_parts_that_declare_nothing_or_bring_no_closed_form_learn_the_same(regularizer):
    recipe = REGISTRY.recipe("gem_miner")
    expected = train(
        scored(recipe.model_copy(update={"regularizer": L2(weight=0.05)})), PLANS["sgd"]
    )
    own = {"regularizer": regularizer, "rounding": OwnThreshold()}
    net = train(scored(recipe.model_copy(update=own)), PLANS["sgd"])
    for name, score in expected.raw_scores.items():
        torch.testing.assert_close(net.raw_scores[name], score)


class Sloped(Threshold):
    """A rounding through which gradients pass where the mask is one, halved."""

    name = "sloped"

    def slope(self, view, mask):
        return mask * 0.5


def test_the_slope_of_a_rounding_is_taken_at_the_mask_of_the_forward_pass():
    recipe = REGISTRY.recipe("gem_miner", parts={"regularizer": "none"})
    net = scored(recipe.model_copy(update={"rounding": Sloped()}), tiny_net())
    plain = scored(recipe, tiny_net())
    mask, start = net.mask, {name: score.clone() for name, score in net.raw_scores.items()}
    images, labels = next(iter(tiny_data().train.batches(8, seed=0)))
    for each in (net, plain):
        optimizer = torch.optim.SGD(each.trainable(), lr=1e-3)  # too short to reach any bound
        loss = F.cross_entropy(each.model(images), labels)
        loss.backward()
        each.step(optimizer)
    for name, old in start.items():
        inside = (old > 0.01) & (old < 0.99)
        expected = (plain.raw_scores[name] - old) * mask[name] * 0.5
        torch.testing.assert_close(
            (net.raw_scores[name] - old)[inside], expected[inside], rtol=1e-2, atol=1e-7
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


@pytest.mark.parametrize(
    "rounding", [part.thing() for part in REGISTRY.parts["roundings"].values()]
)
def test_a_rounding_looks_no_further_than_it_says(rounding):
    view = {name: torch.rand(6, 5, generator=generator(0, name)) for name in "abc"}
    alive = {name: torch.rand(6, 5, generator=generator(1, name)) < 0.8 for name in "abc"}
    shares = {("a", "c"): 20, ("b",): 7}
    masks = dict(rounding.masks(view, alive, shares, generator(0, "")))
    layers = [("a",), ("b",), ("c",)]
    units = {"element": layers, "layer": layers, "share": list(shares), "network": [tuple("abc")]}
    for unit in units[rounding.scope]:
        own = {group: count for group, count in shares.items() if set(group) <= set(unit)}
        parts = [{name: each[name] for name in unit} for each in (view, alive)]
        for name, mask in rounding.masks(*parts, own, generator(0, "")):
            assert torch.equal(mask, masks[name])


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup"])
def test_checkpointing_changes_nothing(pruner, reentrant):
    recipe = REGISTRY.recipe(pruner)
    net, plain = scored(recipe), scored(recipe)

    def forward(images):
        return net.model(images, lambda part, x: checkpoint(part, x, use_reentrant=reentrant))

    train(net, PLANS["sgd"], forward=forward)
    assert_same(net, train(plain, PLANS["sgd"]))
