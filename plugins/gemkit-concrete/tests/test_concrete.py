"""Concrete gates keep their contracts, and their formulas hold."""

from pathlib import Path

import gemkit_concrete
import pytest
import torch
from gemkit_concrete import Concrete, ExpectedDensity, LogOdds

from gemkit import Now, Plan, load_plugins, search
from gemkit.core.tensors import generator
from gemkit.testing import CPU, contract, tiny_data, tiny_net

test_plugin = contract(gemkit_concrete)
test_gates_of_low_temperature = contract(Concrete(temperature=0.3))
test_gates_that_are_mostly_closed = contract(LogOdds(start=0.05))

REGISTRY = load_plugins(files=[Path(gemkit_concrete.__file__)], only=())


def test_gates_open_as_often_as_their_probability_says():
    view = {"a": torch.linspace(0, 1, 5).repeat_interleave(4000)}
    mask = Concrete().masks(view, Now(rng=generator(0, "")))["a"]
    rates = mask.view(5, -1).float().mean(dim=1)
    torch.testing.assert_close(rates, torch.linspace(0, 1, 5), rtol=0, atol=0.03)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_the_slope_is_the_derivative_of_the_relaxed_gate(temperature, kept):
    """The noise is held at its median given the hard gate, and the gate differentiated in p."""
    p = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    mask = torch.full_like(p, kept)
    noise = torch.logit(torch.where(mask.bool(), 1 - p / 2, (1 - p) / 2))
    leaf = p.clone().requires_grad_()
    gate = torch.sigmoid((torch.logit(leaf) + noise) / temperature)
    assert ((gate > 0.5) == mask.bool()).all()  # this noise does give this hard gate
    [expected] = torch.autograd.grad(gate.sum(), leaf)
    slope = Concrete(temperature=temperature).slope({"a": p}, {"a": mask}, Now())
    torch.testing.assert_close(slope["a"], expected)


def test_the_penalty_vanishes_at_the_density_and_pulls_towards_it():
    scores = {"a": torch.zeros(6, 4), "b": torch.zeros(8)}
    assert ExpectedDensity(density=0.5).penalty(scores, Now()) == 0
    for density, direction in ((0.2, 1), (0.8, -1)):
        gradients = {name: torch.zeros_like(score) for name, score in scores.items()}
        ExpectedDensity(density=density).add_gradient_(gradients, scores, Now())
        assert all((gradient * direction > 0).all() for gradient in gradients.values())


def test_the_density_is_the_searchs_unless_one_is_chosen():
    scores, now = {"a": torch.full((4,), 0.1).logit()}, Now(target=0.1)
    assert ExpectedDensity().penalty(scores, now) == pytest.approx(0, abs=1e-9)
    assert ExpectedDensity(density=0.3).penalty(scores, now) > 1e-6


def expected_density(asked):
    """Search with a strong penalty and see which density the gates have in the end."""
    recipe = REGISTRY.recipe(
        "concrete_gates",
        options={"regularizer.weight": 0.1, "finalize": "rounded"},
        parts={"schedule": {"name": "once", "after": 1.0}},
    )
    seen = []
    search(
        recipe,
        tiny_net(),
        tiny_data(),
        density=asked,
        plan=Plan(epochs=30, batch_size=16, lr=10.0),
        runtime=CPU,
        on_collapse="warn",
        observers=[lambda event: seen.append(getattr(event, "density", None))],
    )
    return [density for density in seen if density is not None][-1]


@pytest.mark.parametrize("asked", [0.3, 0.7])
def test_a_search_draws_the_gates_to_the_density_asked_for(asked):
    assert expected_density(asked) == pytest.approx(asked, abs=0.08)
