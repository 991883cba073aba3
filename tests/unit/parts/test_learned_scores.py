"""Learned scores, regularizers, roundings: closed forms against autograd, and the density law."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import CPU, PLAN, tiny_data, tiny_net
from torch import nn

from gemkit import LearnedScores, Now, Plan, load_plugins, search
from gemkit.builtin.regularizers import L1, L2, NoRegularizer
from gemkit.builtin.roundings import Bernoulli, Threshold, uniform_like
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import density_of, generator
from gemkit.methods.continuous_sparsification import ConstantScores
from gemkit.methods.gem_miner import UniformScores
from gemkit.parts.regularizer import Regularizer
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.search import search_plan
from gemkit.pruning.update import pull_back_
from gemkit.training.device import make_fabric
from gemkit.training.trainer import Trainer


def straight_through_gradients(model, weights, scores, alive, view, loss_of):
    """The estimator written out with autograd: forward rounds, backward is the identity."""
    leaves = {name: score.clone().requires_grad_() for name, score in scores.items()}
    effective = {}
    for name, leaf in leaves.items():
        seen = view(leaf)
        hard = (seen > 0.5).to(seen.dtype)
        effective[name] = weights[name] * alive[name] * (hard + seen - seen.detach())
    loss = loss_of(torch.func.functional_call(model, effective, (model.images,)))
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def test_the_closed_form_is_the_straight_through_estimator():
    model = tiny_net().double()
    model.images = torch.randn(5, 2, 6, 6, dtype=torch.float64)
    recipe = load_plugins().recipe("gem_miner", parts={"regularizer": "none"})
    net = MaskedNet.learning(model, prunable_names(model), recipe, generator(0, "scores"))
    alive = {
        name: torch.rand(mask.shape, generator=generator(1, name)) < 0.8
        for name, mask in net.alive.items()
    }
    net.freeze_(alive, net.shares)

    def loss_of(logits):
        return logits.square().sum()

    model.eval()
    expected = straight_through_gradients(
        model, net.weights, net.scores, alive, lambda score: score, loss_of
    )
    loss_of(model(model.images)).backward()
    net.learned.take_gradients_(net.parameters)
    with torch.no_grad():
        pull_back_(net.learned)
    for name, score in net.learned.parameters.items():
        torch.testing.assert_close(score.grad, expected[name], rtol=1e-10, atol=1e-12)
        assert score.grad[~alive[name]].count_nonzero() == 0
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("regularizer", [L1(weight=0.3), L2(weight=0.3), NoRegularizer()])
def test_the_closed_form_gradient_of_a_regularizer_is_its_derivative(regularizer):
    scores = {"a": torch.randn(4, 3).double(), "b": torch.randn(7).double()}
    closed = {name: torch.ones_like(score) for name, score in scores.items()}
    regularizer.add_gradient_(closed, scores, Now())
    leaves = {name: score.clone().requires_grad_() for name, score in scores.items()}
    penalty = regularizer.penalty(leaves, Now())
    for name, leaf in leaves.items():
        pull = torch.zeros_like(leaf)
        if penalty.requires_grad:
            [pull] = torch.autograd.grad(penalty, leaf, retain_graph=True)
        torch.testing.assert_close(closed[name], 1 + pull)


def test_a_regularizer_needs_only_its_penalty():
    class Quartic(Regularizer):
        """λ·Σp⁴."""

        name = "quartic"

        def penalty(self, values, now):
            return sum((value**4).sum() for value in values.values())

    gradients, scores = {"a": torch.zeros(3)}, {"a": torch.tensor([1.0, -2.0, 0.5])}
    Quartic().add_gradient_(gradients, scores, Now())
    torch.testing.assert_close(gradients["a"], 4 * scores["a"] ** 3)


def density_after(epochs, *, decay, lr=0.1, momentum=0.9, steps=391, total_epochs=150):
    """Train scores on a task that pulls at none of them: the weights are all zero."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 600, bias=False))
    nn.init.zeros_(model[1].weight)
    recipe = load_plugins().recipe("gem_miner", options={"regularizer.weight": decay})
    net = MaskedNet.learning(model, ["1.weight"], recipe, generator(0, "scores"))
    with torch.no_grad():  # evenly spread instead of drawn, so that no luck is involved
        net.scores["1.weight"].view(-1).copy_(torch.linspace(0, 1, 36 * 600))
    net.freeze_(net.alive, net.shares)
    plan = Plan(epochs=total_epochs, lr=lr, momentum=momentum)
    trainer = Trainer(net, plan, make_fabric(CPU), CPU)
    batch = (torch.zeros(1, 1, 6, 6), torch.zeros(1, dtype=torch.int64))
    rates = [plan.lr_at(step, steps) for step in range(epochs * steps)]
    for rate in rates:
        trainer.step(batch, lr=rate)
    law = 1 - 0.5 * math.exp(2 * decay * sum(rates) / (1 - momentum))
    return density_of(net.mask), law


def test_the_density_law_holds():
    """λ alone sets the density as long as the task is silent; the paper's logs show the same."""
    measured, law = density_after(1, decay=5e-5)
    assert measured == pytest.approx(law, abs=1e-3)
    assert measured == pytest.approx(0.480, abs=2e-3)  # logged by the authors: 48.07 %
    measured, law = density_after(8, decay=5e-5)
    assert measured == pytest.approx(law, abs=2e-3)
    assert measured == pytest.approx(0.317, abs=3e-3)  # logged by the authors: 31.55 %


def test_a_mean_instead_of_a_sum_would_break_the_density_law():
    """The broken version: λ divided by the number of scores leaves the density at one half."""
    measured, _ = density_after(1, decay=5e-5 / (36 * 600))
    assert measured != pytest.approx(0.480, abs=2e-3)


def test_a_score_at_the_threshold_is_off():
    scores = {"a": torch.tensor([0.4, 0.5, 0.6])}
    masks = Threshold().masks(scores, Now())
    assert masks["a"].tolist() == [0, 0, 1]


def test_randomized_rounding_keeps_as_often_as_the_score_says():
    scores = {"a": torch.linspace(0, 1, 5).repeat_interleave(4000)}
    mask = Bernoulli().masks(scores, Now(rng=generator(0, "")))["a"]
    rates = mask.view(5, -1).float().mean(dim=1)
    torch.testing.assert_close(rates, torch.linspace(0, 1, 5), rtol=0, atol=0.03)
    assert rates[0] == 0
    assert rates[-1] == 1


def test_uniform_scores_are_projected_and_popup_scores_are_not():
    registry = load_plugins()
    values = torch.tensor([-0.5, 0.2, 1.7])
    registry.build("scores", "popup").project_({"a": values})
    assert values.tolist() == pytest.approx([-0.5, 0.2, 1.7])
    registry.build("scores", "uniform").project_({"a": values})
    assert values.tolist() == pytest.approx([0.0, 0.2, 1.0])


@pytest.mark.parametrize(("scores", "fastest"), [("uniform", 2.0), ("popup", 0.3)])
def test_short_searches_learn_faster_and_the_papers_length_has_the_papers_rate(scores, fastest):
    part = load_plugins().build("scores", scores)
    assert part.default_lr(600) == fastest
    assert part.default_lr(150 * 391) == part.default_lr(10**6) == pytest.approx(0.1)
    rates = [part.default_lr(steps) for steps in range(1, 100_000, 997)]
    assert rates == sorted(rates, reverse=True)


class OfAdam(ConstantScores):
    """Scores that are best trained with Adam."""

    name = "of_adam"
    default_optimizer = "adam"

    def default_lr(self, steps):
        """Return a rate that nothing else has."""
        return 0.123


@pytest.mark.parametrize("train", ["scores", "both"])
def test_scores_choose_the_optimizer_of_a_plan_that_names_none(train):
    usual = load_plugins().recipe("continuous_sparsification", options={"train": train})
    recipe, data = usual.model_copy(update={"scores": OfAdam()}), tiny_data()
    rate = {"scores": "lr", "both": "score_lr"}[train]

    def decided(recipe, **given):
        plan = search_plan(recipe, Plan(epochs=2, **given), data)
        assert search_plan(recipe, plan, data) == plan
        return plan.optimizer, getattr(plan, rate)

    assert decided(recipe) == ("adam", 0.123)
    assert decided(recipe, **{rate: 0.4}) == ("adam", 0.4)
    assert decided(recipe, optimizer="adamw") == ("adamw", 0.01)
    assert decided(recipe, optimizer="sgd") == decided(usual) == ("sgd", 1.0)


def test_a_search_of_200_steps_moves_uniform_scores_as_far_as_one_of_600():
    part = load_plugins().build("scores", "uniform")
    sums = [steps * part.default_lr(steps) for steps in (200, 300, 600)]
    assert sums == pytest.approx([1200.0] * 3)
    assert part.default_lr(1) == part.default_lr(200) == 6.0
    assert load_plugins().build("scores", "popup").default_lr(100) == 0.3


LEARNED = {
    name: entry.thing()
    for name, entry in load_plugins().parts["scores"].items()
    if issubclass(entry.thing, LearnedScores)
}


@pytest.mark.parametrize("name", sorted(LEARNED))
@given(values=st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=20))
def test_projection_is_idempotent_and_lands_where_the_scores_may_be(name, values):
    once = torch.tensor(values)
    LEARNED[name].project_({"a": once})
    twice = once.clone()
    LEARNED[name].project_({"a": twice})
    assert torch.equal(once, twice)
    if LEARNED[name].unit_interval:
        view = LEARNED[name].view({"a": once})["a"]
        assert 0 <= view.min() <= view.max() <= 1


class Careless(UniformScores):
    """Scores that are ranked as they should be, and overwritten."""

    name = "careless"

    def importance(self, probe):
        ranked = {name: value.clone() for name, value in self.view(probe.scores).items()}
        for score in probe.scores.values():
            score.fill_(0.75)
        return ranked


def test_measuring_in_place_does_not_change_the_learned_scores():
    recipe = load_plugins(only=[]).recipe("gem_miner", options={"schedule.every": 1})
    masks = [
        search(
            recipe.model_copy(update={"scores": scores}),
            tiny_net(),
            tiny_data(),
            density=0.3,
            plan=PLAN,
            runtime=CPU,
            on_collapse="warn",
        ).mask
        for scores in (UniformScores(), Careless())
    ]
    assert all(torch.equal(mask, masks[1][name]) for name, mask in masks[0].items())


def test_one_draw_for_all_layers_gives_the_numbers_of_one_after_the_other():
    """Whatever the layout of a layer: the order is that of its indices."""
    shapes = [(4, 3, 5, 5), (7, 2), (0, 3), (33,), (2, 3, 1, 1), (6, 4, 3, 3)]
    tensors = [torch.empty(shape) for shape in shapes]
    tensors[0] = tensors[0].to(memory_format=torch.channels_last)
    tensors[1] = torch.empty(2, 7).t()
    one, other = generator(0, "draws"), generator(0, "draws")
    for drawn, like in zip(uniform_like(tensors, one), tensors, strict=True):
        assert torch.equal(drawn, torch.rand(like.shape, generator=other))
        assert drawn.stride() == like.stride()
    assert torch.equal(one.get_state(), other.get_state())
