"""What parts see of a search: the clock, the mask in use, and their own state."""

from itertools import chain, repeat

import pytest
import torch
import torch.nn.functional as F
from kept import Recorder, dropping_net, in_lives
from pydantic import PrivateAttr
from tiny import CPU, tiny_data, tiny_net

from gemkit import Now, Plan, load_plugins
from gemkit.builtin.objectives import CrossEntropy
from gemkit.builtin.regularizers import L2
from gemkit.builtin.roundings import Threshold
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import density_of, generator
from gemkit.parts.objective import Objective
from gemkit.parts.regularizer import Regularizer
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.search import search
from gemkit.training.optimizers import make_optimizer

REGISTRY = load_plugins(only=[])
PLAN = Plan(epochs=3, batch_size=8, lr=0.5)
"""Twelve steps."""
SEEN = []


class Noting(CrossEntropy):
    """Cross-entropy that notes the clock."""

    name = "noting"

    def loss(self, outputs, batch, now):
        SEEN.append((float(now.step), float(now.progress), now.steps, now.target))
        return super().loss(outputs, batch, now)


class Watching(L2):
    """A penalty that notes the clock and the density."""

    name = "watching"
    needs_density = True

    def add_gradient_(self, gradients, values, now):
        SEEN.append((float(now.step), float(now.progress), float(now.density)))
        super().add_gradient_(gradients, values, now)


def found(recipe, checkpointer=None, observers=(), **parts):
    torch.manual_seed(99)  # what a process draws before does not matter
    return search(
        recipe.model_copy(update=parts),
        dropping_net(),
        tiny_data(),
        density=0.3,
        plan=PLAN,
        runtime=CPU,
        on_collapse="warn",
        observers=observers,
        checkpointer=checkpointer,
    )


@pytest.fixture(autouse=True)
def _nothing_seen():
    SEEN.clear()


# --- the clock -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pruner", "steps"), [("gem_miner", 12), ("imp_long_cold", 12 * 6), ("gradual_magnitude", 12)]
)
def test_an_objective_sees_how_far_the_search_is(pruner, steps):
    """Iterative pruning takes six rounds: 0.8⁶ ≤ 0.3."""
    recipe = REGISTRY.recipe(pruner)
    found(recipe, objective=Noting())
    assert [step for step, *_ in SEEN] == list(range(steps))  # before each step
    assert [now for _, now, *_ in SEEN] == pytest.approx([step / steps for step in range(steps)])
    assert {one[2:] for one in SEEN} == {(steps, 0.3)}


def test_a_penalty_sees_its_step_and_the_density_of_the_forward_pass():
    model = tiny_net()
    recipe = REGISTRY.recipe("gem_miner").model_copy(update={"regularizer": Watching(weight=0.02)})
    net = MaskedNet.learning(
        model, prunable_names(model), recipe, generator(0, "scores"), steps=8, target=0.3
    )
    optimizer = make_optimizer(Plan(lr=0.5), net.trainable())
    used = []
    for turn, (images, labels) in enumerate([*tiny_data().train.batches(8, seed=0)] * 2):
        if turn == 4:  # also weights of high scores are pruned for good
            alive = {name: score < 0.8 for name, score in net.scores.items()}
            net.freeze_(alive, net.shares)
            assert any((net.scores[name][~alive[name]] > 0.5).any() for name in alive)
        used.append(density_of({name: own != 0 for name, own in net.effective.items()}))
        F.cross_entropy(net.model(images), labels).backward()
        net.step(optimizer)
    assert [(step, now) for step, now, _ in SEEN] == [(at, at / 8) for at in range(1, 9)]
    assert [density for *_, density in SEEN] == pytest.approx(used, abs=1e-6)
    assert len(set(used)) > 2


def test_soft_gates_are_what_the_weights_were_multiplied_by():
    model = tiny_net()
    recipe = REGISTRY.recipe("continuous_sparsification", options={"scores.start": 0.3})
    net = MaskedNet.learning(model, prunable_names(model), recipe, generator(0, "s"), steps=8)
    for name, weight in net.effective.items():
        torch.testing.assert_close(weight, net.weights[name] * torch.sigmoid(torch.tensor(0.3)))
        torch.testing.assert_close(net.now.gates[name] * net.weights[name], weight)
    torch.testing.assert_close(net.now.density, torch.sigmoid(torch.tensor(0.3)))


def test_the_clock_counts_in_single_precision_also_in_half_precision():
    net = MaskedNet(tiny_net().to(torch.bfloat16), prunable_names(tiny_net()), now=Now(steps=1000))
    for _ in range(300):
        net.now.step.add_(1)
    assert net.now.step == 300
    assert MaskedNet(tiny_net().double(), prunable_names(tiny_net())).now.step.dtype == torch.double


# --- state ---------------------------------------------------------------------------------------


class Following(Regularizer):
    """λ·Σp² with a λ that rises while the density is above the target, and falls below it."""

    name = "following"
    needs_density = True

    start: float = 1e-3

    def init_state(self, weights):
        like = next(iter(weights.values()))
        return {"weight": like.new_tensor(self.start)}

    def penalty(self, values, now):
        return now.state["weight"] * sum(value.square().sum() for value in values.values())

    def add_gradient_(self, gradients, values, now):
        now.state["weight"].mul_(torch.exp(now.density - now.target))
        super().add_gradient_(gradients, values, now)


class Forgetful(Following):
    """The broken version: its λ is an attribute, which no checkpoint holds."""

    name = "forgetful"
    _weight: float = PrivateAttr(1e-3)

    def penalty(self, values, now):
        return self._weight * sum(value.square().sum() for value in values.values())

    def add_gradient_(self, gradients, values, now):
        self._weight *= float(torch.exp(now.density - now.target))
        Regularizer.add_gradient_(self, gradients, values, now)


class Damped(Objective):
    """Cross-entropy divided by its running mean."""

    name = "damped"

    def init_state(self, weights):
        return {"mean": next(iter(weights.values())).new_ones(())}

    def loss(self, outputs, batch, now):
        loss = F.cross_entropy(outputs, batch[1])
        now.state["mean"].mul_(0.9).add_(loss.detach(), alpha=0.1)
        return loss / now.state["mean"]


def resumes(tmp_path, **kinds):
    """Whether a search with parts of these kinds, killed after every few steps, ends the same."""
    recipe = REGISTRY.recipe("gem_miner", options={"schedule.every": 1})

    def run(told, checkpointer):  # every process makes its parts again
        return found(recipe, checkpointer, [told], **{role: kind() for role, kind in kinds.items()})

    straight = run(told := Recorder(), None)
    resumed, retold, deaths = in_lives(run, tmp_path, chain([2, 5], repeat(4)))
    assert deaths > 2
    return told == retold and all(
        torch.equal(straight.state[name], own) for name, own in resumed.state.items()
    )


@pytest.mark.parametrize(
    "kinds", [{"regularizer": Following}, {"objective": Damped, "regularizer": Following}]
)
def test_a_killed_search_resumes_the_state_of_its_parts(kinds, tmp_path):
    assert resumes(tmp_path, **kinds)


class Looking(Threshold):
    """A rounding that writes down which state it is given."""

    name = "looking"

    def masks(self, view, now):
        SEEN.append(dict(now.state))
        return super().masks(view, now)

    def slope(self, view, masks, now):
        SEEN.append(dict(now.state))
        return super().slope(view, masks, now)

    def hard(self, view, now):
        SEEN.append(dict(now.state))
        return super().hard(view, now)


def test_a_rounding_does_not_see_the_state_of_the_regularizer():
    SEEN.clear()
    recipe = REGISTRY.recipe("gem_miner", options={"schedule.every": 1})
    found(recipe, None, [], regularizer=Following(), rounding=Looking())
    assert len(SEEN) > 12
    assert not any(SEEN)


def test_a_part_that_keeps_a_number_in_an_attribute_would_be_noticed(tmp_path):
    assert not resumes(tmp_path, regularizer=Forgetful)


def test_a_penalty_with_state_moves_the_scores_as_it_says():
    def densities(start):
        told = []
        found(
            REGISTRY.recipe("gem_miner", options={"schedule.every": 2}),
            observers=[lambda event: told.append(getattr(event, "density", None))],
            regularizer=Following(start=start),
        )
        return [density for density in told if density is not None]

    assert densities(3e-3)[0] < densities(1e-6)[0]


def test_state_is_part_of_a_compiled_update(monkeypatch):
    real = torch.compile
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda what, **how: real(what, backend="eager", **how))

    def trained(compiled):
        model = tiny_net()
        recipe = REGISTRY.recipe("gem_miner").model_copy(update={"regularizer": Following()})
        net = MaskedNet.learning(model, prunable_names(model), recipe, generator(0, "s"), steps=4)
        if compiled:
            net.compile_()
        plan = Plan(lr=0.5)
        optimizer = make_optimizer(plan, net.groups(plan), compiled=compiled)
        for images, labels in tiny_data().train.batches(8, seed=0):
            F.cross_entropy(net.model(images), labels).backward()
            net.step(optimizer)
        return net

    compiled, plain = trained(True), trained(False)
    assert float(plain.learned.state["weight"]) != pytest.approx(1e-3)
    torch.testing.assert_close(compiled.learned.state["weight"], plain.learned.state["weight"])
    for name, score in plain.scores.items():
        torch.testing.assert_close(compiled.scores[name], score)
