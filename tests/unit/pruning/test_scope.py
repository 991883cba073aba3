"""Which weights a recipe prunes: names, kinds of layers, and what fits its structure."""

import pytest
import torch
from tiny import CPU, tiny_data, tiny_net
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from gemkit import load_plugins, search
from gemkit.core.errors import FitError, GemkitError
from gemkit.core.events import Noted
from gemkit.core.tensors import budget, total
from gemkit.pruning.scope import left_out, names_in_scope

REGISTRY = load_plugins(only=[])
ALL = ["0.weight", "3.weight", "5.weight", "8.weight"]
SCOPES = {
    "everything": ({}, ALL),
    "include": ({"prunable.include": ["[03].*"]}, ["0.weight", "3.weight"]),
    "skip": ({"prunable.skip": ["8.*"]}, ALL[:3]),
    "both": ({"prunable.include": ["[038].*"], "prunable.skip": ["0.*"]}, ["3.weight", "8.weight"]),
    "convolutions": ({"prunable.kinds": ["conv"]}, ALL[:3]),
    "linear": ({"prunable.kinds": ["linear"]}, ["8.weight"]),
}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("pruner", ["magnitude", "edge_popup", "gradual_magnitude"])
def test_only_what_is_in_scope_is_pruned_and_the_rest_is_told(pruner, scope):
    options, names = SCOPES[scope]
    events = []
    recipe = REGISTRY.recipe(pruner, options=options)
    ticket = search(
        recipe,
        tiny_net(),
        tiny_data(),
        density=0.3,
        epochs=3,
        runtime=CPU,
        observers=[events.append],
        on_collapse="warn",
    )
    assert list(ticket.mask) == names
    assert ticket.kept == budget(total(ticket.mask), 0.3)
    told = [event.message for event in events if isinstance(event, Noted)]
    told = [message for message in told if message.startswith("not pruned, because of the recipe")]
    out = [name for name in ALL if name not in names]
    assert len(told) == bool(out)
    assert all(repr(name) in told[0] for name in out)
    assert not any(repr(name) in message for name in names for message in told)


def test_weights_out_of_scope_stay_dense_and_train():
    recipe = REGISTRY.recipe("gradual_magnitude", options={"prunable.skip": ["8.*"]})
    ticket = search(
        recipe, tiny_net(), tiny_data(), density=0.3, epochs=3, runtime=CPU, on_collapse="warn"
    )
    head = ticket.apply(tiny_net())[8].weight
    assert (head != 0).all()
    assert not torch.equal(head.detach(), tiny_net()[8].weight.detach())


def test_layers_that_a_block_does_not_divide_are_left_out_and_told():
    recipe = REGISTRY.recipe("magnitude", parts={"structure": {"name": "nm", "n": 1, "m": 2}})
    names = names_in_scope(recipe, tiny_net())
    assert names == ["0.weight", "8.weight"]
    assert left_out(recipe, tiny_net(), names) == (
        "not pruned, because of the recipe's prunable or structure: '3.weight', '5.weight'"
    )


@pytest.mark.parametrize(
    ("parts", "options", "words"),
    [
        ({}, {"prunable.skip": ["head.*"]}, "prunable: 'head.*' matches no weight of Sequential"),
        ({}, {"prunable.include": ["0.*", "classifier.*"]}, "'classifier.*' matches no weight"),
        ({"structure": "nm"}, {}, "structure 'nm' fits no prunable weight of Sequential"),
    ],
)
def test_a_scope_that_says_nothing_about_the_network_is_refused(parts, options, words):
    recipe = REGISTRY.recipe("magnitude", parts=parts, options=options)
    with pytest.raises(FitError) as caught:
        names_in_scope(recipe, tiny_net())
    assert words in str(caught.value)
    assert "'0.weight', '3.weight'" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ALL[:3]),
        ({"prunable.skip": ["8.*"]}, ALL[:3]),
        ({"prunable.include": ["[03].*"]}, ALL[:2]),
        ({"prunable.kinds": ["conv"]}, ALL[:3]),
    ],
)
def test_filters_leave_out_the_layer_of_the_outputs_and_no_other(options, names):
    recipe = REGISTRY.recipe("magnitude", parts={"structure": "filters"}, options=options)
    assert names_in_scope(recipe, tiny_net()) == names


def test_filters_leave_out_the_outputs_also_where_they_are_frozen_or_shared():
    recipe = REGISTRY.recipe("magnitude", parts={"structure": "filters"})
    frozen, shared = tiny_net(), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    frozen[8].weight.requires_grad_(False)
    shared[2].weight = shared[0].weight
    assert names_in_scope(recipe, frozen) == ALL[:3]
    assert names_in_scope(recipe, frozen, frozen=True) == ALL[:3]
    assert names_in_scope(recipe, shared) == ["1.weight"]


def test_everything_skipped_is_refused():
    recipe = REGISTRY.recipe("magnitude", options={"prunable.skip": ["*"]})
    with pytest.raises(GemkitError, match="has no prunable weights"):
        names_in_scope(recipe, tiny_net())


def test_a_layer_that_computes_its_weight_may_be_skipped():
    net = nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(72, 8)), nn.Linear(8, 3))
    with pytest.raises(GemkitError, match="in every forward pass"):
        names_in_scope(REGISTRY.recipe("magnitude"), net)
    recipe = REGISTRY.recipe("magnitude", options={"prunable.skip": ["1.*"]})
    names = names_in_scope(recipe, net)
    assert names == ["2.weight"]
    assert "'1.weight'" in left_out(recipe, net, names)


def test_frozen_weights_are_not_told_twice():
    net = tiny_net()
    net[0].weight.requires_grad_(False)
    recipe = REGISTRY.recipe("magnitude", options={"prunable.skip": ["8.*", "0.*"]})
    names = names_in_scope(recipe, net)
    assert names == ["3.weight", "5.weight"]
    assert "'0.weight'" not in left_out(recipe, net, names)
    assert "'0.weight'" in left_out(recipe, net, names, frozen=True)


class Tied(nn.Module):
    """Two layers with one weight, and a third with that of an embedding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = (nn.Linear(72, n) for n in (72, 72, 3))
        self.second.weight = self.first.weight
        self.words = nn.Embedding(3, 72)
        self.head.weight = self.words.weight

    def forward(self, images):
        return self.head(self.second(self.first(images.flatten(1)).relu()).relu())


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["first.weight", "head.weight"]),
        ({"prunable.skip": ["second.*"]}, ["head.weight"]),
        ({"prunable.include": ["second.*"]}, ["first.weight"]),
        ({"prunable.skip": ["words.*"]}, ["first.weight"]),
        (
            {"prunable.include": ["first.*", "head.*"], "prunable.skip": ["second.*"]},
            ["head.weight"],
        ),
    ],
)
def test_patterns_see_every_name_of_a_tied_weight(options, names):
    assert names_in_scope(REGISTRY.recipe("magnitude", options=options), Tied()) == names


def test_patterns_see_every_name_of_a_frozen_tied_weight():
    net = Tied().requires_grad_(False)
    recipe = REGISTRY.recipe("magnitude", options={"prunable.include": ["second.*"]})
    assert names_in_scope(recipe, net, frozen=True) == ["first.weight"]
    with pytest.raises(GemkitError, match="every prunable weight of Tied is frozen"):
        names_in_scope(recipe, net)
