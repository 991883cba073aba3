"""Penalties that follow the target density: the law, the density they end with, and their state."""

import math
from itertools import chain, repeat

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kept import Recorder, dropping_net, in_lives
from tiny import CPU, tiny_data
from torch import nn

from gemkit import Now, Plan, load_plugins
from gemkit.builtin import auto
from gemkit.builtin.auto import Auto
from gemkit.core.errors import FitError
from gemkit.core.events import EpochEnded, Noted
from gemkit.core.state import StateDict
from gemkit.core.tensors import density_of
from gemkit.pruning.learned import LearnedMask
from gemkit.pruning.search import search

REGISTRY = load_plugins(only=[])
SHAPES = {"a": (4, 5), "b": (6, 10)}
COUNT = 80
STEPS = 10


# --- the law -------------------------------------------------------------------------------------


def by_hand(densities, sizes, steps, target=0.2, end=0.65):
    """Compute λ of every step in plain numbers, from the equations in the module's docstring."""
    integral = variance = 0.0
    calm = min(1, steps / 240)
    found = []
    for step, (density, size) in enumerate(zip(densities, sizes, strict=True), start=1):
        part = step / steps
        wanted = densities[0] * (target / densities[0]) ** min(1, part / end)
        wanted = min(1, wanted * math.sqrt(2) ** max(0, (part - end) / (1 - end)))
        share = max(1 / step, 0.02)
        variance += share * (size**2 / density - variance)
        error = min(1, max(-1, math.log(density / wanted)))
        integral = min(6, max(-6, integral + calm * 40 * error / steps))
        found.append(0.02 * math.sqrt(variance) * math.sinh(1 + calm * 16 * error + integral))
    return found


def strengths(part, densities, sizes, steps=1000, target=0.2):
    """Take steps with masks of these densities and gradients that all have these sizes."""
    scores = {name: torch.full(shape, 0.5, dtype=torch.double) for name, shape in SHAPES.items()}
    now, found = Now(steps=steps, target=target, state=part.init_state(scores)), []
    for step, (density, size) in enumerate(zip(densities, sizes, strict=True), start=1):
        now.step = torch.tensor(float(step), dtype=torch.double)
        flat = (torch.arange(COUNT) < round(density * COUNT)).double()
        pieces = flat.split([math.prod(shape) for shape in SHAPES.values()])
        now.gates = {
            name: piece.view(shape)
            for (name, shape), piece in zip(SHAPES.items(), pieces, strict=True)
        }
        gradients = {name: torch.full_like(score, size) for name, score in scores.items()}
        part.add_gradient_(gradients, scores, now)
        found.append(float(part.strength(now)))
        # 2p and the sign of p are 1 where every p is one half.
        torch.testing.assert_close(
            gradients["a"], torch.full(SHAPES["a"], size + found[-1]).double()
        )
    return found


MASKS = st.lists(st.integers(1, COUNT), min_size=STEPS, max_size=STEPS)


@pytest.mark.parametrize("form", ["l1", "l2"])
@pytest.mark.parametrize("steps", [STEPS, 1000])
@given(kept=MASKS, sizes=st.lists(st.floats(1e-3, 1e3), min_size=STEPS, max_size=STEPS))
def test_the_strength_is_that_of_the_equations(form, steps, kept, sizes):
    densities = [count / COUNT for count in kept]
    expected = by_hand(densities, sizes, steps)
    found = strengths(Auto(form=form), densities, sizes, steps)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3 * max(sizes))


@given(kept=MASKS, size=st.floats(1e-3, 1e3))
def test_the_price_has_no_unit(kept, size):
    densities = [count / COUNT for count in kept]
    one, other = (strengths(Auto(), densities, [of] * STEPS) for of in (size, 1024 * size))
    assert other == pytest.approx([1024 * strength for strength in one], rel=1e-9)


def test_a_mask_that_is_too_dense_costs_more_and_one_too_sparse_is_paid():
    even, dense, sparse = (
        strengths(Auto(), [0.5, *[density] * (STEPS - 1)], [1.0] * STEPS)
        for density in (0.5, 0.6, 0.4)
    )
    assert dense[-1] > even[-1] > 0 > sparse[-1]


# --- the density of the ticket -------------------------------------------------------------------


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def perceptron():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(72, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3)
    )


def found(regularizer, model=perceptron, density=0.1, observers=(), checkpointer=None, **plan):
    torch.manual_seed(0)
    recipe = REGISTRY.recipe("gem_miner", parts={"regularizer": regularizer})
    own = {"epochs": 40, "batch_size": 16, "lr": 2.0} | plan
    return search(
        recipe,
        model(),
        tiny_data(samples=64),
        density=density,
        plan=Plan(**own),
        runtime=CPU,
        on_collapse="warn",
        observers=observers,
        checkpointer=checkpointer,
    )


CASES = {
    "as it is": {},
    "denser": {"density": 0.5},
    "sparser": {"density": 0.04},
    "convolutions": {"model": convolutions},
    "l1": {"regularizer": "auto:l1"},
    "slow": {"lr": 0.5},
    "fast": {"lr": 10.0},
    "short": {"epochs": 20, "lr": 5.0},
    "long": {"epochs": 60},
    "large batches": {"batch_size": 32, "epochs": 80},
    "adamw": {"optimizer": "adamw", "lr": 0.02},
    "lion": {"optimizer": "lion", "lr": 0.01},
}
LIMITS = {
    "denser than the first mask": {"density": 0.7},
    "a little denser": {"density": 0.6},
    "lion, steps of a fiftieth": {"optimizer": "lion", "lr": 0.02},
}
"""Where the law comes close, and no closer: see the limits in docs/auto-lambda.md."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_search_ends_at_its_target(case):
    case = dict(case)
    ticket = found(case.pop("regularizer", "auto"), **case)
    target = case.get("density", 0.1)
    assert 0.95 * target <= density_of(ticket.mask) <= 1.001 * target


@pytest.mark.parametrize("case", LIMITS.values(), ids=LIMITS)
def test_at_its_limits_a_search_ends_within_a_tenth(case):
    target = case.get("density", 0.1)
    assert 0.9 * target <= density_of(found("auto", **case).mask) <= 1.001 * target


def test_without_feedback_it_would_miss_the_target(monkeypatch):
    monkeypatch.setattr(auto.Steered, "quick", 0.0)
    monkeypatch.setattr(auto.Steered, "slow", 0.0)
    assert density_of(found("auto", density=0.5).mask) < 0.9 * 0.5


def test_rounding_at_random_ends_below_the_target_as_it_drops_what_is_alive():
    recipe = REGISTRY.recipe("gem_miner", parts={"regularizer": "auto", "rounding": "bernoulli"})
    torch.manual_seed(0)
    plan = Plan(epochs=40, batch_size=16, lr=2.0)
    ticket = search(
        recipe, perceptron(), tiny_data(samples=64), density=0.2, plan=plan, runtime=CPU
    )
    assert 0.6 * 0.2 <= density_of(ticket.mask) <= 0.2


@pytest.mark.parametrize("rounding", ["topk", "open"])
def test_a_rounding_that_decides_the_density_is_refused(rounding):
    recipe = REGISTRY.recipe("gem_miner", parts={"regularizer": "auto", "rounding": rounding})
    with pytest.raises(FitError, match=f"rounding '{rounding}' leaves it no choice; use"):
        search(recipe, perceptron(), tiny_data(), plan=Plan(epochs=3), runtime=CPU)


# --- what is reported ----------------------------------------------------------------------------


def notes(regularizer, **case):
    heard = []
    found(regularizer, observers=[heard.append], **case)
    return [event.message for event in heard if isinstance(event, Noted)]


def test_a_fixed_penalty_that_misses_the_target_names_the_way_out():
    [note] = notes({"name": "l2", "weight": 3e-4}, density=0.5)
    assert "far fewer than the target of 0.5" in note
    assert "choose regularizer 'auto'" in note
    assert notes("auto", density=0.5) == []
    assert notes({"name": "l2", "weight": 1e-8}, density=0.3) == []


def test_a_search_that_never_freezes_has_its_own_target():
    recipe, heard = REGISTRY.recipe("edge_popup"), []
    own = {"plan": Plan(epochs=2, batch_size=16), "runtime": CPU, "observers": [heard.append]}
    search(recipe, perceptron(), tiny_data(samples=64), density=0.2, **own)
    assert not any("far fewer" in event.message for event in heard if isinstance(event, Noted))


def test_every_epoch_tells_the_strength():
    def told(regularizer):
        heard = []
        found(regularizer, observers=[heard.append], epochs=4)
        return [event.strength for event in heard if isinstance(event, EpochEnded)]

    assert told({"name": "l2", "weight": 1e-5}) == [1e-5] * 4
    assert told("none") == [None] * 4
    assert len(set(told("auto"))) == 4


# --- state ---------------------------------------------------------------------------------------


def resumes(folder):
    """Whether a search that is killed every few steps ends with the same bits."""

    def run(told, checkpointer):
        return found("auto", dropping_net, 0.3, [told], checkpointer, epochs=4, lr=0.5)

    straight = run(told := Recorder(), None)
    resumed, retold, deaths = in_lives(run, folder, chain([2, 5], repeat(4)))
    assert deaths > 2
    return told == retold and all(
        torch.equal(straight.state[name], own) for name, own in resumed.state.items()
    )


def test_a_killed_search_resumes_to_the_same_bits(tmp_path):
    assert resumes(tmp_path)


def test_a_state_that_is_not_loaded_would_be_noticed(tmp_path, monkeypatch):
    load = LearnedMask.load_state_dict

    def forgetful(self: LearnedMask, state: StateDict) -> None:
        load(self, state)
        self.state["integral"].zero_()

    monkeypatch.setattr(LearnedMask, "load_state_dict", forgetful)
    assert not resumes(tmp_path)


# --- continuous sparsification -------------------------------------------------------------------


def test_gates_that_harden_end_at_the_target():
    torch.manual_seed(0)
    recipe = REGISTRY.recipe("continuous_sparsification", parts={"regularizer": "auto_gates"})
    plan = Plan(epochs=40, batch_size=16)
    ticket = search(
        recipe, perceptron(), tiny_data(samples=64), density=0.1, plan=plan, runtime=CPU
    )
    assert 0.09 <= density_of(ticket.mask) <= 0.1001
