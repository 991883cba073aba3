"""A compact network is the same function: in float64 to 1e-10, on every architecture."""

import pytest
import timm
import torch
from compacting import SHAPE, error_of, images, info, randomize_norms_, size, ticket_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from gemkit import load_plugins
from gemkit.compaction import compact
from gemkit.compaction.layers import ConvOrLinear
from gemkit.core.errors import CompactionError
from gemkit.tickets.ticket import Ticket

REGISTRY = load_plugins(only=[])
BUILT_IN = {
    "conv4": {},
    "lenet300": {"bias": True},
    "lenet5": {"bias": True},
    "mobilenet_v2": {"width": 8},
    "resnet18": {"width": 8},
    "resnet20": {"width": 8},
    "vgg16": {"width": 8},
    "wide_resnet28_2": {"width": 4},
}
FROM_TIMM = {
    "convnext_atto": (3, 32, 32),
    "mobilenetv3_small_050": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "resnet26": (3, 32, 32),
    "vit_tiny_patch16_224": (3, 16, 16),
}
SMALLER = {
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
    "vit_tiny_patch16_224": {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2},
}


def built_in(name, **fields):
    shape = (3, 32, 32) if name in {"vgg16", "lenet5"} else SHAPE
    torch.manual_seed(0)
    part = REGISTRY.build("models", name, {**BUILT_IN[name], **fields})
    return randomize_norms_(part.build(shape, 10).double()), shape


@pytest.mark.parametrize("density", [0.05, 0.01])
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_built_in_network_is_the_same_function_and_smaller(name, density):
    model, shape = built_in(name)
    ticket = ticket_of(model, density, shape=shape)
    error, small = error_of(model, ticket, shape)
    assert error < 1e-10
    assert size(small.model) < size(model)
    assert small.untouched == []


@pytest.mark.parametrize("name", ["conv4", "mobilenet_v2", "resnet18", "resnet20"])
def test_a_network_with_biases_and_affine_norms_is_the_same_function_and_smaller(name):
    model, shape = built_in(name, bias=True, bn="affine")
    error, small = error_of(model, ticket_of(model, 0.05, shape=shape), shape)
    assert error < 1e-10
    assert size(small.model) < size(model)
    assert small.carried > 0


@pytest.mark.parametrize("name", sorted(FROM_TIMM))
def test_a_timm_network_is_the_same_function_and_smaller(name):
    torch.manual_seed(0)
    made = timm.create_model(name, num_classes=10, **SMALLER.get(name, {}))
    model, shape = randomize_norms_(made.double()), FROM_TIMM[name]
    error, small = error_of(model, ticket_of(model, 0.02, shape=shape), shape)
    assert error < 1e-10
    assert size(small.model) < size(model)


# --- random networks -----------------------------------------------------------------------------


class RandomNet(nn.Module):
    """A few blocks, each with one way of combining channels."""

    def __init__(self, kinds, width, *, affine, bias, padding, act):
        super().__init__()
        self.kinds, self.act = kinds, act
        edge = {"padding": padding, "padding_mode": "circular" if padding == 2 else "zeros"}
        self.stem = nn.Conv2d(3, width, 3, bias=bias, **edge)
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for kind in kinds:
            inputs = 2 * width if kind == "stack" else width
            groups = {"depthwise": width, "grouped": 2}.get(kind, 1)
            size = 1 if kind in {"residual", "gate", "stack"} else 3
            own = {**edge, "padding": 0} if size == 1 else edge
            self.convs.append(nn.Conv2d(inputs, width, size, groups=groups, bias=bias, **own))
            self.norms.append(nn.BatchNorm2d(width, affine=affine))
        self.head = nn.Linear(4 * width, 5, bias=bias)

    def forward(self, x):
        x = self.act(self.stem(x))
        for kind, conv, norm in zip(self.kinds, self.convs, self.norms, strict=True):
            y = norm(conv(torch.cat([x, x * 0.5], 1) if kind == "stack" else x))
            if kind == "residual":
                x = self.act(x + y)
            elif kind == "gate":
                x = x * torch.sigmoid(y.mean((2, 3), keepdim=True))
            else:
                x = F.max_pool2d(self.act(y), 2, stride=1)
        return self.head(F.adaptive_avg_pool2d(x, 2).flatten(1))


KINDS = ["plain", "residual", "depthwise", "grouped", "gate", "stack"]
networks = st.builds(
    RandomNet,
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    width=st.sampled_from([4, 6]),
    affine=st.booleans(),
    bias=st.booleans(),
    padding=st.sampled_from([0, 1, 2]),
    act=st.sampled_from([F.relu, F.silu, torch.sigmoid]),
)


@given(networks, st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.5]), st.integers(0, 1000))
@settings(max_examples=60)
def test_any_network_is_the_same_function(model, density, seed):
    model = randomize_norms_(model.double(), seed)
    shape = (3, 16, 16)
    error, _ = error_of(model, ticket_of(model, density, shape=shape, seed=seed), shape)
    assert error < 1e-10


# --- removed, folded and kept channels -----------------------------------------------------------


def two_convs(padding, *, shift=1.5):
    """Two convolutions; channels 1 and 2 of the first are constant, the shifts of the norm."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 2, 3, padding=padding, bias=False),
        nn.Flatten(),
        nn.Linear(2 * (4 + 2 * padding) ** 2, 2, bias=False),
    ).double()
    model[1].bias.data = torch.tensor([0.1, shift, 2 * shift, 0.2]).double()
    ticket = Ticket(
        {
            name: torch.ones_like(p, dtype=torch.bool)
            for name, p in model.named_parameters()
            if p.ndim > 1
        },
        model.state_dict(),
        info(),
    )
    ticket.mask["0.weight"][1:3] = False
    return model, ticket


def test_without_padding_constants_are_folded_into_the_bias():
    model, ticket = two_convs(padding=0)
    error, small = error_of(model, ticket)
    assert error < 1e-10
    assert small.model[0].out_channels == small.model[3].in_channels == 2
    assert small.model[3].bias is not None
    assert small.carried == 1


def test_with_padding_one_constant_channel_represents_all():
    model, ticket = two_convs(padding=1)
    error, small = error_of(model, ticket)
    assert error < 1e-10
    assert small.model[0].out_channels == small.model[3].in_channels == 3
    assert small.model[3].bias is None


def test_a_kernel_whose_sum_is_zero_contributes_at_the_border():
    model, ticket = two_convs(padding=1)
    model[3].weight.data[:, 1] = 0
    model[3].weight.data[:, 1, 0, 0], model[3].weight.data[:, 1, 2, 2] = 1, -1
    ticket = Ticket(ticket.mask, model.state_dict(), ticket.info)
    error, small = error_of(model, ticket)
    assert error < 1e-10
    assert small.model[3].in_channels == 3


@pytest.mark.parametrize("padding", [0, 1])
def test_zero_channels_are_removed_without_folding(padding):
    model, ticket = two_convs(padding, shift=-1.0)  # ReLU makes them zero
    error, small = error_of(model, ticket)
    assert error < 1e-10
    assert (small.model[3].in_channels, small.carried) == (2, 0)


def test_unused_channels_are_removed_with_everything_that_only_they_need():
    model, ticket = two_convs(padding=1)
    ticket.mask["0.weight"][:] = True
    ticket.mask["3.weight"][:, 1:] = False
    error, small = error_of(model, ticket)
    assert error < 1e-10
    assert small.model[0].weight.shape == (1, 3, 3, 3)
    assert small.model[1].num_features == 1


def test_a_wrong_result_is_refused(monkeypatch):
    """Constants that are not folded, or padding that is ignored, change the outputs."""
    model, ticket = two_convs(padding=0)
    with monkeypatch.context() as patch:
        patch.setattr(ConvOrLinear, "folded", lambda *_: {})
        with pytest.raises(CompactionError, match="other outputs"):
            compact(ticket, model)
    model, ticket = two_convs(padding=1)
    monkeypatch.setattr("gemkit.compaction.layers._padded", lambda _: False)
    with pytest.raises(CompactionError, match="other outputs"):
        compact(ticket, model)


def test_a_dead_branch_keeps_one_channel():
    model, ticket = two_convs(padding=1)
    ticket.mask["0.weight"][:] = False
    error, small = error_of(model, ticket)
    assert error < 1e-10
    assert small.model[0].out_channels == 1


def test_the_model_and_the_ticket_are_not_changed():
    model, ticket = two_convs(padding=0)
    before, digest = {n: t.clone() for n, t in model.state_dict().items()}, ticket.digest()
    compact(ticket, model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert ticket.digest() == digest


# --- operations that are not understood ----------------------------------------------------------


class Mixing(nn.Module):
    """Sorts channels, which is not understood, between layers that are."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1)
        self.three, self.head = nn.Conv2d(6, 6, 1), nn.Linear(6, 2)

    def forward(self, x):
        x = self.two(self.one(x).relu()).sort(dim=1).values
        return self.head(self.three(x).mean((2, 3)))


def test_all_channels_around_an_opaque_operation_are_kept():
    torch.manual_seed(0)
    model = randomize_norms_(Mixing().double())
    error, small = error_of(model, ticket_of(model, 0.1))
    assert error < 1e-10
    assert small.untouched == ["sort"]
    assert small.model.two.out_channels == small.model.three.in_channels == 6
    assert small.model.one.out_channels < 6


@pytest.mark.parametrize(
    "flat",
    [
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(start_dim=1),
    ],
)
def test_all_ways_to_flatten_an_image_are_understood(flat):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6 * 36, 2)

        def forward(self, x):
            return self.head(flat(self.conv(x).relu()))

    torch.manual_seed(0)
    model = randomize_norms_(Net().double())
    ticket = ticket_of(model, 0.5)
    ticket.mask["conv.weight"][:3] = False
    error, small = error_of(model, ticket)
    assert error < 1e-10
    assert small.model.conv.out_channels == 3
    assert small.untouched == []


def test_other_views_are_opaque():
    class Net(Twice):
        def forward(self, x):
            return self.head(self.one(x.flatten(1)).view(-1, 6))

    model = randomize_norms_(Net().double())
    error, small = error_of(model, ticket_of(model, 0.1))
    assert error < 1e-10
    assert small.untouched == ["view"]
    assert small.model.one.out_features == 6


class Twice(nn.Module):
    """Uses a layer twice."""

    def __init__(self):
        super().__init__()
        self.one, self.same, self.head = nn.Linear(192, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        x = self.one(x.flatten(1))
        return self.head(self.same(self.same(x).relu()).relu())


def test_a_layer_that_is_used_twice_is_not_changed():
    torch.manual_seed(0)
    model = randomize_norms_(Twice().double())
    error, small = error_of(model, ticket_of(model, 0.1))
    assert error < 1e-10
    assert small.model.same.weight.shape == (6, 6)


def test_tied_weights_are_not_changed():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 6), nn.Linear(6, 6), nn.Linear(6, 6)
    ).double()
    model[3].weight = model[2].weight
    error, small = error_of(model, ticket_of(model, 0.1))
    assert error < 1e-10
    assert small.model[3].weight.shape == (6, 6)


class Fork(nn.Module):
    """Branches on its input, which cannot be traced."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(192, 2)

    def forward(self, x):
        return self.head(x.flatten(1)) if x.sum() > 0 else x.flatten(1)[:, :2]


def test_a_forward_pass_that_cannot_be_traced_is_refused():
    model = Fork().double()
    with pytest.raises(CompactionError, match="forward pass of Fork cannot be traced"):
        compact(ticket_of(model, 0.5), model)


def test_a_submodule_that_cannot_be_traced_is_kept_and_the_rest_is_compacted():
    torch.manual_seed(0)

    class Inner(Fork):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    model = nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1), Inner(), nn.Flatten(), nn.Linear(384, 2)
    )
    model = randomize_norms_(model.double())
    error, small = error_of(model, ticket_of(model, 0.1))
    assert error < 1e-10
    assert size(small.model) < size(model)


def test_a_ticket_without_the_shape_of_images_asks_for_it():
    model, ticket = two_convs(padding=0)
    ticket = ticket.with_info(shape=None)
    with pytest.raises(CompactionError, match="give shape="):
        compact(ticket, model)
    small = compact(ticket, model, shape=SHAPE)
    assert small.model(images()).shape == (3, 2)


class Late(nn.Module):
    """Applies an in-place ReLU to a value that was used before."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(4, 2)
        self.early, self.late = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = self.norm(self.conv(x))
        early = self.early(x)
        return self.head((early + self.late(self.relu(x))).mean((2, 3)))


def test_a_later_in_place_operation_does_not_change_earlier_uses():
    torch.manual_seed(0)
    model = randomize_norms_(Late().double())
    ticket = ticket_of(model, 2.0)
    ticket.mask["conv.weight"][:2] = False
    model.norm.bias.data[:2] = -5
    ticket = Ticket(ticket.mask, model.state_dict(), info())
    error, small = error_of(model, ticket)
    assert error < 1e-10
    assert small.model.conv.out_channels == 2


@pytest.mark.parametrize(
    ("pool", "left"),
    [
        (nn.AvgPool2d(2), 2),
        (nn.AvgPool2d(3, stride=1, padding=1), 4),  # the border differs, so nothing can be folded
        (nn.MaxPool2d(3, stride=2, padding=1), 2),
        (nn.AdaptiveMaxPool2d(2), 2),
    ],
)
def test_constant_channels_pass_poolings_without_zero_padding(pool, left):
    model, ticket = two_convs(padding=0)
    model[2] = nn.Sequential(nn.ReLU(), pool)
    model[3] = nn.Conv2d(4, 2, 1, bias=False).double()
    model[4] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model[5] = nn.Linear(2, 2, bias=False).double()
    mask = {name: torch.ones_like(model.get_parameter(name)).bool() for name in ticket.mask}
    mask["0.weight"][1:3] = False
    error, small = error_of(model, Ticket(mask, model.state_dict(), info()))
    assert error < 1e-10
    assert small.model[0].out_channels == left
