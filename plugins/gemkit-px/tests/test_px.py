"""PX keeps its contract, and equals a walk along all paths."""

from dataclasses import replace
from pathlib import Path

import gemkit_px
import pytest
import torch
from gemkit_px import PathExclusion
from hypothesis import given, settings
from hypothesis import strategies as st
from px_references import BATCHES, conv_net, mlp, probe, reference, walk
from torch import nn

from gemkit import load_plugins, search
from gemkit.core.errors import ImportanceError
from gemkit.core.tensors import budget, generator
from gemkit.models.part import ModelPart
from gemkit.testing import CPU, contract, tiny_data, tiny_net

test_plugin = contract(gemkit_px)

REGISTRY = load_plugins(files=[Path(gemkit_px.__file__)], only=())


def most(weights, seed=0):
    rng = generator(seed, "alive")
    return {name: torch.rand(own.shape, generator=rng) < 0.8 for name, own in weights.items()}


def in_double(scores):
    assert all(own.dtype == torch.float64 for own in scores.values())
    return scores


# --- all paths of a small network -----------------------------------------------------------------


SMALL = [(torch.randn(5, 3, generator=torch.Generator().manual_seed(at)), None) for at in (0, 1)]


def close(scores, expected):
    assert scores.keys() == expected.keys()
    for name, own in in_double(scores).items():
        torch.testing.assert_close(own, expected[name], rtol=1e-9, atol=0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [(3, 2), (3, 4, 2), (3, 4, 3, 2)])
@pytest.mark.parametrize("pruned", [False, True])
def test_the_score_is_a_sum_over_paths(widths, bias, pruned):
    model = mlp(*widths, bias=bias).double()
    alive = most(probe(model, SMALL).weights) if pruned else None
    here = probe(model, SMALL, alive)
    expected = walk(model, here)
    assert any((own > 0).any() for own in expected.values())
    close(PathExclusion().importance(here), expected)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 99), st.booleans())
def test_the_scores_of_every_layer_sum_to_the_same(hidden, seed, pruned):
    model = mlp(3, *hidden, 2, seed=seed).double()
    alive = most(probe(model, SMALL).weights, seed) if pruned else None
    scores = PathExclusion().importance(probe(model, SMALL, alive))
    sums = torch.stack([own.sum() for own in scores.values()])
    torch.testing.assert_close(sums, sums[:1].expand_as(sums), rtol=1e-9, atol=0)
    assert all((own >= 0).all() for own in scores.values())


# --- convolutions, norms, poolings and shortcuts, on changed copies of the model ------------------


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("pruned", [False, True])
def test_convolutions_norms_and_shortcuts_equal_three_changed_copies(pruned, inplace):
    here = probe(conv_net())
    here = probe(conv_net(inplace), alive=most(here.weights) if pruned else None)
    close(PathExclusion().importance(here), reference(conv_net(), BATCHES, here.alive))


def test_depthwise_layers_of_the_tiny_network_too():
    here = probe(tiny_net().double())
    close(
        PathExclusion().importance(here), reference(tiny_net().double().eval(), BATCHES, here.alive)
    )


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(72, 8), nn.Linear(8, 3)

    def forward(self, images):
        hidden = self.body(images.flatten(1))
        torch.relu_(hidden)
        return self.head(hidden)


def test_a_relu_in_place_changes_what_it_is_given():
    model = InPlace()
    plain = nn.Sequential(nn.Flatten(), model.body, nn.ReLU(), model.head)
    one, other = (PathExclusion().importance(probe(net)).values() for net in (model, plain))
    assert all(map(torch.equal, one, other))


def test_a_running_mean_counts_as_a_bias():
    plain, shifted = conv_net(), conv_net()
    mean = torch.tensor([0.5, -1.0, 0.0, 2.0]).double()
    plain[0].bias.data.fill_(0.0)
    shifted[0].bias.data.copy_(mean)  # so that the network computes the same
    shifted[1].running_mean.copy_(mean)
    one, other = (PathExclusion().importance(probe(model)) for model in (plain, shifted))
    assert (other["0.weight"] == one["0.weight"]).all()  # its paths begin at the input
    assert (other["9.weight"] > one["9.weight"]).all()  # and these at the shifts, too


def test_layers_that_are_not_pruned_are_paths_all_the_same():
    model = conv_net()
    whole = PathExclusion().importance(probe(model))
    model[0].weight.requires_grad_(False)
    part = PathExclusion().importance(probe(model))
    assert "0.weight" not in part
    assert all(torch.equal(own, whole[name]) for name, own in part.items())


# --- what it depends on, and what it refuses ------------------------------------------------------


def test_data_decide_but_not_their_scale():
    one = PathExclusion().importance(probe(mlp(3, 4, 2), SMALL))
    louder = [(4 * images, labels) for images, labels in SMALL]
    other = PathExclusion().importance(probe(mlp(3, 4, 2), louder))
    negative = [(-images, labels) for images, labels in SMALL]
    turned = PathExclusion().importance(probe(mlp(3, 4, 2), negative))
    for name, own in one.items():
        torch.testing.assert_close(other[name], 16 * own)
    assert any(not torch.allclose(own, turned[name]) for name, own in one.items())


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, images):
        tokens = images.flatten(1, 2)
        return self.head(self.attention(tokens, tokens, tokens)[0].mean(1))


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(72, 3)

    def forward(self, images):
        return self.head(images.flatten(1)) + 3


def with_(layer):
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 8), layer, nn.Linear(8, 3))


REFUSED = {
    "'multi_head_attention_forward'": Attends,
    "'gelu'": with_(nn.GELU()),
    "'sigmoid'": with_(nn.Sigmoid()),
    "'layer_norm'": with_(nn.LayerNorm(8)),
    "a sum with a constant": Adds,
    "a batch norm without running": with_(nn.BatchNorm1d(8, track_running_stats=False)),
}


@pytest.mark.parametrize("function", REFUSED)
def test_networks_without_paths_are_refused_by_name(function):
    with pytest.raises(ImportanceError, match=f"takes {function}"):
        PathExclusion().importance(probe(REFUSED[function]()))


def test_what_stands_before_the_first_pruned_layer_is_seen_too():
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.GELU(), nn.Linear(8, 3))
    model[1].requires_grad_(False)
    with pytest.raises(ImportanceError, match="'gelu'"):
        PathExclusion().importance(probe(model))


def test_more_paths_than_a_number_can_hold_are_refused():
    with pytest.raises(ImportanceError, match="overflows even double precision"):
        PathExclusion().importance(probe(mlp(3, *[60] * 250, 2), SMALL))


def test_without_data_it_is_refused():
    with pytest.raises(ImportanceError, match="at least one batch"):
        PathExclusion().importance(replace(probe(tiny_net()), batches=[]))


@pytest.mark.parametrize("name", ["resnet20", "mobilenet_v2", "wide_resnet28_2", "timm:resnet18"])
def test_usual_networks_have_paths(name):
    part = REGISTRY.build("models", name)
    assert isinstance(part, ModelPart)
    torch.manual_seed(0)
    model = part.build((2, 16, 16), 3)
    images = torch.rand(2, 2, 16, 16)
    scores = PathExclusion().importance(probe(model, [(images, torch.zeros(2).long())]))
    assert all(own.isfinite().all() and (own >= 0).all() for own in scores.values())


def test_the_search_takes_a_hundred_rounds_and_keeps_every_layer():
    ticket = search(
        REGISTRY.recipe("px"), tiny_net(), tiny_data(samples=24), density=0.1, runtime=CPU
    )
    assert len(ticket.info.history) == 100
    assert ticket.kept == budget(ticket.prunable, 0.1)
    assert all(layer.kept for layer in ticket.layers)
