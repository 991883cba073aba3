"""Weights that are written while their ranks are looked for are those of a selection, always."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gemkit import pieces, topk
from gemkit.errors import ImportanceError
from gemkit.plugins import load_plugins
from gemkit.scored import ScoredNet
from gemkit.selection import keep_top
from gemkit.tensors import generator
from gemkit.topk import Flat

NAMES = ("a", "b")
SHAPES = {"a": (6, 5, 3, 3), "b": (40, 7)}


def scored(pruner):
    """Make a network of two layers, one of them channels-last."""
    layers = torch.nn.ModuleDict({"a": torch.nn.Conv2d(5, 6, 3), "b": torch.nn.Linear(7, 40)})
    assert {name: tuple(layer.weight.shape) for name, layer in layers.items()} == SHAPES
    layers = layers.to(memory_format=torch.channels_last)
    names = [f"{name}.weight" for name in NAMES]
    net = ScoredNet(layers, names, load_plugins(only=[]).recipe(pruner), generator(0, "scores"))
    return net


def drift(net, levels, size, seed):
    """Move every score, as a step does, and write the weights; few levels make many ties."""
    draw = generator(seed, "drift")
    for score in net.raw_scores.values():
        moved = score + size * (torch.rand(score.shape, generator=draw) - 0.5)
        score.copy_((moved * levels).round() / levels if levels else moved)
    for name in net.scores:
        for piece in net._pieces(name):
            net._wearers[name].wear_early_(piece)
    net._round_units()


def assert_selected(net):
    masks = keep_top(net.view, net.alive, net.shares)
    for name, mask in masks.items():
        assert torch.equal(net.effective[name], net.weights[name] * mask), name


@pytest.fixture(autouse=True)
def _small_layers_count_as_large(monkeypatch):
    monkeypatch.setattr(topk, "_SMALL", 20)
    monkeypatch.setattr(pieces, "PIECE", 48)


@given(
    pruner=st.sampled_from(["edge_popup", "global_ep"]),
    levels=st.sampled_from([0, 0, 30, 3]),
    sizes=st.lists(st.sampled_from([0, 1e-4, 1e-2, 1, 100]), min_size=1, max_size=6),
    density=st.floats(0.02, 0.98),
    seed=st.integers(0, 99),
)
def test_the_top_is_written_step_after_step(pruner, levels, sizes, density, seed):
    net = scored(pruner)
    net.freeze_(net.alive, net.recipe.allocation.keep(net.view, net.alive, density))
    assert_selected(net)
    for step, size in enumerate(sizes):
        drift(net, levels, size, seed + step)
        assert_selected(net)


@given(low=st.floats(-1, 1), width=st.floats(0, 2))
def test_no_expectation_can_change_what_is_written(low, width):
    net = scored("global_ep")
    net.freeze_(net.alive, net.recipe.allocation.keep(net.view, net.alive, 0.3))
    for wearer in net._wearers.values():
        wearer._expected = (low, low + width)
    drift(net, 0, 0.1, 0)
    assert_selected(net)


def test_small_steps_are_expected(monkeypatch):
    """Or this would be right, and slow."""
    net = scored("global_ep")
    net.freeze_(net.alive, net.recipe.allocation.keep(net.view, net.alive, 0.3))
    sampled = []
    bracket = topk.bracket
    monkeypatch.setattr("gemkit.wearing.bracket", lambda *a: sampled.append(a) or bracket(*a))
    for step in range(10):
        drift(net, 0, 1e-5, step)
    assert sampled == []
    drift(net, 0, 10, 10)
    assert len(sampled) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_refused(bad):
    net = scored("edge_popup")
    net.freeze_(net.alive, net.recipe.allocation.keep(net.view, net.alive, 0.3))
    net.raw_scores["a.weight"][0, 0, 0, 0] = bad
    with pytest.raises(ImportanceError, match=r"'a\.weight' has"):
        drift(net, 0, 1e-5, 0)


def test_what_is_not_alive_is_left_to_the_selection():
    net = scored("edge_popup")
    some = {
        name: torch.rand(q.shape, generator=generator(1, name)) < 0.5
        for name, q in net.alive.items()
    }
    net.freeze_(some, {(name,): 9 for name in some})
    assert not net._wearers
    assert_selected(net)


@pytest.mark.parametrize("count", range(3, 8))
def test_ties_go_to_the_first_layer_where_places_exceed_what_is_looked_at(count):
    """Entries of a band are far apart in their layers, which are longer than the band."""
    values = np.array([3.0, 1, 1, 1] + 40 * [0.0])
    parts = [Flat(values, place=lambda positions: 100 * positions) for _ in range(2)]
    masks = topk._top_between(0.5, 1.5, parts, count)
    best = np.argsort(-np.concatenate([values, values]), kind="stable")[:count]
    assert sorted(np.flatnonzero(np.concatenate(masks))) == sorted(best)


@pytest.mark.parametrize("density", [0.3, 0.02])
def test_an_expectation_is_finite_or_there_is_none(density):
    net = scored("global_ep")
    net.freeze_(net.alive, net.recipe.allocation.keep(net.view, net.alive, density))
    for wearer in net._wearers.values():
        assert wearer._expected is None or np.isfinite(wearer._expected).all()
