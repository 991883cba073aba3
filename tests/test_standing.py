"""Weights that stand still: a byte each where only signs differ, and exactly what they were."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_net

from gemkit import load_plugins
from gemkit.pieces import Cut
from gemkit.scored import ScoredNet
from gemkit.standing import Signed, Whole, stand
from gemkit.tensors import generator, prunable_names

LAYOUTS = {
    "contiguous": lambda weight: weight,
    "channels last": lambda weight: weight.contiguous(memory_format=torch.channels_last),
    "with gaps": lambda weight: weight.repeat_interleave(2, dim=3)[..., ::2],
}


def signed(seed, size, dtype=torch.float32):
    """Draw weights of one size; a shape whose entries fill no whole number of bytes."""
    signs = torch.randint(0, 2, (3, 5, 3, 3), generator=generator(seed, "signs")) * 2 - 1
    return signs.to(dtype) * size


def some(seed):
    return torch.rand(3, 5, 3, 3, generator=generator(seed, "alive")) < 0.6


def assert_stands(standing, weight, alive):
    assert torch.equal(standing.weights, weight)
    assert standing.weights.dtype == weight.dtype
    assert torch.equal(standing.parts.alive, alive)
    assert torch.equal(standing.parts.living(), weight * alive)
    cut, alike = Cut(weight), torch.empty_like(weight, dtype=torch.bool).copy_(alive)
    pieces = (standing.parts.split(cut), cut.split(weight.clone()), cut.split(alike))
    for piece, own, living in zip(*pieces, strict=True):
        assert torch.equal(piece.living(), own * living)
        assert torch.equal(piece.alive, living)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("keep", [Signed.of, lambda weight: Whole.of(weight.clone())])
@given(
    seed=st.integers(0, 10**6),
    size=st.floats(2.0**-99, 2.0**99, width=32),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_weights_are_what_they_were_whichever_live(keep, layout, seed, size, dtype):
    weight = layout(signed(seed, size, dtype))
    standing = keep(weight)
    assert_stands(standing, weight, torch.ones_like(weight, dtype=torch.bool))
    fewer = some(seed)
    assert_stands(standing.under(fewer), weight, fewer)
    assert_stands(standing.under(fewer).under(some(seed + 1)), weight, some(seed + 1))
    assert_stands(standing, weight, torch.ones_like(weight, dtype=torch.bool))


@pytest.mark.parametrize("odd", [0.0, 0.25, -0.5000001, math.nan, math.inf])
def test_weights_of_several_sizes_are_kept_whole(odd):
    weight = signed(0, 0.5)
    assert isinstance(stand(weight), Signed)
    weight[1, 2, 0, 1] = odd
    assert isinstance(stand(weight), Whole)


@pytest.mark.parametrize("size", [0.0, 1e-38, math.nan, math.inf])
def test_signs_alone_do_not_make_a_weight(size):
    assert isinstance(stand(signed(0, size)), Whole)
    assert isinstance(stand(torch.zeros(0, 4)), Whole)


def bytes_beside(net):
    """Count what a search keeps of its weights besides the network and the scores."""
    kept = 0
    for standing in net._standing.values():
        own = standing.parts
        kept += sum(part.nbytes for part in vars(own).values() if isinstance(part, torch.Tensor))
        kept += getattr(standing, "negative", torch.zeros(0)).nbytes
    return kept / sum(parameter.numel() for parameter in net.parameters.values())


@pytest.mark.parametrize(("init", "most"), [("signed_constant", 1.15), ("kaiming_normal", 5)])
def test_a_search_keeps_a_byte_of_a_weight_where_that_is_enough(init, most):
    registry = load_plugins(only=[])
    recipe = registry.recipe("gem_miner", parts={"init": init})
    model = tiny_net()
    names = prunable_names(model)
    weights = {name: model.get_parameter(name).detach() for name in names}
    for name, drawn in recipe.init.draw(weights, generator(0, "weights")).items():
        weights[name].copy_(drawn)
    before = {name: weight.clone() for name, weight in weights.items()}
    net = ScoredNet(model, names, recipe, generator(0, "scores"))
    assert bytes_beside(net) <= most
    net.freeze_({name: q & (torch.rand(q.shape) < 0.5) for name, q in net.alive.items()}, {})
    assert bytes_beside(net) <= most
    assert all(torch.equal(weight, before[name]) for name, weight in net.weights.items())
