"""Layers that recompute their weight are refused: a masked zero would not stay zero."""

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import Conv2dSame, ScaledStdConv2d, StdConv2d, StdConv2dSame
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm

from gemkit.core.errors import GemkitError
from gemkit.core.prunable import WEIGHTED, prunable_names, recomputes


class Centred(nn.Linear):
    """Subtracts the mean, so that no zero stays zero."""

    def forward(self, x):
        return F.linear(x, self.weight - self.weight.mean(), self.bias)


class Inside(nn.Conv2d):
    """Changes the weight below `forward`."""

    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean(), bias)


class Scaled(nn.Linear):
    """Multiplies its weight; zeros stay zero."""

    def forward(self, x):
        return F.linear(input=x, weight=self.weight * 3, bias=self.bias)


class Turned(nn.Linear):
    """Transposes its weight."""

    def forward(self, x):
        return F.linear(x, self.weight.T)


class Demanding(nn.Linear):
    """Needs a second input."""

    def forward(self, x, scale):
        return super().forward(x) * scale


class Counting(Centred):
    """Updates a buffer in its forward pass."""

    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


def patched():
    layer = nn.Linear(4, 4)
    layer.forward = lambda x: F.linear(x, layer.weight - 1)
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        StdConv2d(3, 4, 3),
        StdConv2d(6, 6, 3, groups=6),
        StdConv2dSame(3, 4, 3, stride=2),
        ScaledStdConv2d(3, 4, 3, dilation=2),
        Centred(4, 4),
        Inside(3, 4, 3),
        patched(),
        parametrizations.weight_norm(nn.Linear(4, 4)),
        parametrizations.orthogonal(nn.Linear(4, 4)),
        prune.identity(nn.Conv1d(3, 4, 3), "weight"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_that_recomputes_its_weight_is_refused_by_name(layer):
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(layer))
    with pytest.raises(GemkitError, match=r"recomputes '1\.0\.weight'.*would not be zero"):
        prunable_names(model)
    assert prunable_names(model, skip=["1.*"]) == ["0.weight"]


def test_the_deprecated_weight_norm_is_detected():
    with pytest.warns(FutureWarning):
        layer = weight_norm(nn.Linear(4, 4))
    assert recomputes(layer, "weight")


def test_projections_of_attention_are_checked():
    attention = nn.MultiheadAttention(4, 2)
    torch.nn.utils.parametrize.register_parametrization(attention, "in_proj_weight", nn.Tanh())
    with pytest.raises(GemkitError, match="in_proj_weight"):
        prunable_names(attention)


@pytest.mark.parametrize(
    "layer",
    [
        *(kind(4, 4, 2) for kind in WEIGHTED[:6]),
        nn.Linear(4, 4),
        nn.Bilinear(4, 4, 4),
        Conv2dSame(3, 4, 3, stride=2),
        timm.layers.Linear(4, 4),
        Scaled(4, 4),
        Turned(4, 4),
        Demanding(4, 4),
        timm.layers.StdConv2d(3, 4, 3).to("meta"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_that_keeps_zeros_or_cannot_be_tried_is_prunable(layer):
    assert prunable_names(layer) == ["weight"]


def test_the_check_changes_nothing():
    layer = Counting()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    random = torch.get_rng_state()
    assert recomputes(layer, "weight")
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("name", ["nf_resnet26", "resnetv2_50x1_bit"])
def test_timm_networks_with_standardized_weights_are_refused(name):
    with pytest.raises(GemkitError, match=r"recomputes .* in every forward pass"):
        prunable_names(timm.create_model(name, num_classes=3))
