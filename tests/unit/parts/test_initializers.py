"""Where weights and scores begin: the distributions the papers state."""

import math

import pytest
import torch
from torch import nn

from gemkit import load_plugins
from gemkit.core.tensors import generator

REGISTRY = load_plugins()
WEIGHTS = {
    "conv": nn.Conv2d(16, 64, 3).weight.detach(),
    "depthwise": nn.Conv2d(512, 512, 3, groups=512).weight.detach(),
    "linear": nn.Linear(64, 100).weight.detach(),
}
FAN_IN = {"conv": 144, "depthwise": 9, "linear": 64}
FAN_OUT = {"conv": 576, "depthwise": 512 * 9, "linear": 100}


def draw(name, seed=0, **fields):
    return REGISTRY.build("initializers", name, fields).draw(WEIGHTS, generator(seed, "weights"))


def test_signed_constants_have_one_size_per_layer_and_fair_signs():
    for name, weight in draw("signed_constant").items():
        size = math.sqrt(2 / FAN_IN[name])
        torch.testing.assert_close(weight.abs(), torch.full_like(weight, size))
        assert (weight > 0).float().mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("mode", "fans"), [("fan_in", FAN_IN), ("fan_out", FAN_OUT)])
def test_kaiming_normal_has_the_standard_deviation_of_he_et_al(mode, fans):
    for name, weight in draw("kaiming_normal", mode=mode).items():
        assert weight.std() == pytest.approx(math.sqrt(2 / fans[name]), rel=0.05)
        assert weight.mean() == pytest.approx(0, abs=0.05 * math.sqrt(2 / fans[name]))


@pytest.mark.parametrize(("mode", "fans"), [("fan_in", FAN_IN), ("fan_out", FAN_OUT)])
def test_kaiming_uniform_fills_its_bounds(mode, fans):
    for name, weight in draw("kaiming_uniform", mode=mode).items():
        bound = math.sqrt(6 / fans[name])
        assert 0.98 * bound < weight.abs().max() <= bound
        assert weight.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_as_built_is_the_models_own():
    assert all(torch.equal(weight, WEIGHTS[name]) for name, weight in draw("as_built").items())


@pytest.mark.parametrize("name", ["signed_constant", "kaiming_normal", "kaiming_uniform"])
def test_the_seed_decides(name):
    one, again, other = draw(name), draw(name), draw(name, seed=1)
    assert all(torch.equal(one[layer], again[layer]) for layer in one)
    assert not any(torch.equal(one[layer], other[layer]) for layer in one)


def test_scores_begin_as_their_papers_say():
    uniform = REGISTRY.build("scores", "uniform").init(WEIGHTS, generator(0, "scores"))
    popup = REGISTRY.build("scores", "popup").init(WEIGHTS, generator(0, "scores"))
    for name, fan in FAN_IN.items():
        assert 0 <= uniform[name].min() < 0.01
        assert 0.99 < uniform[name].max() <= 1
        assert uniform[name].var() == pytest.approx(1 / 12, rel=0.05)
        bound = 1 / math.sqrt(fan)
        assert 0.98 * bound < popup[name].abs().max() <= bound
        assert popup[name].mean() == pytest.approx(0, abs=0.03 * bound)
