"""`permute` changes the order of hidden units and nothing else, on every architecture."""

import copy
from dataclasses import replace

import pytest
import timm
import torch
from architectures import vgg16
from check_contexts import REGISTRY, context_with
from compacting import SHAPE, images, randomize_norms_, ticket_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_data
from torch import nn
from torch.nn import functional as F

from gemkit.compaction.ops import Opaque
from gemkit.core.errors import CheckError
from gemkit.sanity.connectivity import barrier_of, errors_between
from gemkit.sanity.trials import fair_control, trials
from gemkit.sanity.units import hidden_units, reordered
from gemkit.sanity.verdicts import verdicts
from gemkit.training.plan import Plan, Runtime

PERMUTE = REGISTRY.build("checks", "permute")
BUILT_IN = {
    "conv4": {},
    "lenet300": {"bias": True},
    "lenet5": {"bias": True},
    "mobilenet_v2": {"width": 8, "bn": "affine"},
    "resnet18": {"width": 8},
    "resnet20": {"width": 8, "bias": True, "bn": "affine"},
    "vgg16": {"width": 8},
    "wide_resnet28_2": {"width": 4},
}


def permuted_pair(build, shape=SHAPE, density=0.3, seed=0):
    """Return a ticket for a network, its permuted control, and their context."""
    torch.manual_seed(seed)
    model = build().double()
    ticket = ticket_of(randomize_norms_(model, seed), density, shape=shape, seed=seed)
    context = context_with(
        "random",
        network=lambda: copy.deepcopy(model),
        data=tiny_data(classes=10, shape=shape, samples=20),
        seed=seed,
    )
    return ticket, fair_control(PERMUTE, ticket, context), context


def outputs(ticket, context):
    with torch.no_grad():
        return ticket.apply(context.network()).eval()(images(context.data.shape))


def is_permuted(ticket, control, context):
    """Same outputs, same count in every layer, same values, in another order."""
    before, after = outputs(ticket, context), outputs(control, context)
    return (
        float((before - after).abs().max()) < 1e-9 * max(1.0, float(before.abs().max()))
        and [one.kept for one in ticket.layers] == [one.kept for one in control.layers]
        and all(same_values(ticket.state[n], control.state[n]) for n in ticket.state)
        and all(
            same_values(ticket.state[n][mask], control.state[n][control.mask[n]])
            for n, mask in ticket.mask.items()
        )
        and any(not torch.equal(ticket.mask[n], control.mask[n]) for n in ticket.mask)
    )


def same_values(one, other):
    return torch.equal(one.flatten().sort().values, other.flatten().sort().values)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_built_in_network_computes_the_same_with_all_layers_permuted(name):
    shape = (3, 32, 32) if name in {"vgg16", "lenet5"} else SHAPE
    part = REGISTRY.build("models", name, BUILT_IN[name])
    ticket, control, context = permuted_pair(lambda: part.build(shape, 10), shape)
    assert is_permuted(ticket, control, context)
    moved = [n for n in ticket.mask if not torch.equal(ticket.state[n], control.state[n])]
    assert moved == list(ticket.mask), "every layer has hidden units on one side at least"


def test_a_plain_vgg_computes_the_same():
    assert is_permuted(*permuted_pair(lambda: vgg16(4), (3, 32, 32)))


@pytest.mark.parametrize(
    ("name", "options", "layers"),
    [
        ("mobilenetv3_small_050", {}, 50),
        ("resnext26ts", {}, 20),
        ("convnext_atto", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}, 8),
        ("vit_tiny_patch16_224", {"img_size": 32, "embed_dim": 24, "depth": 2}, 4),
    ],
)
def test_a_timm_network_computes_the_same_with_what_is_understood_permuted(name, options, layers):
    build = lambda: timm.create_model(name, num_classes=10, **options)  # noqa: E731
    ticket, control, context = permuted_pair(build, (3, 32, 32))
    assert is_permuted(ticket, control, context)
    moved = [n for n in ticket.mask if not torch.equal(ticket.state[n], control.state[n])]
    assert len(moved) >= layers


class Joined(nn.Module):
    """Channels that meet in every way: sums, gates, stacks, groups, depthwise, flattened."""

    def __init__(self, kinds, width, *, affine, bias):
        super().__init__()
        self.kinds = kinds
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=bias)
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for kind in kinds:
            inputs = 2 * width if kind == "stack" else width
            groups = {"depthwise": width, "grouped": 2}.get(kind, 1)
            self.convs.append(nn.Conv2d(inputs, width, 3, padding=1, groups=groups, bias=bias))
            self.norms.append(nn.BatchNorm2d(width, affine=affine))
        self.head = nn.Linear(4 * width, 10, bias=bias)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for kind, conv, norm in zip(self.kinds, self.convs, self.norms, strict=True):
            y = norm(conv(torch.cat([x, x * 0.5], 1) if kind == "stack" else x))
            if kind == "residual":
                x = F.relu(x + y)
            elif kind == "gate":
                x = x * torch.sigmoid(y.mean((2, 3), keepdim=True))
            else:
                x = F.relu(y)
        return self.head(F.adaptive_avg_pool2d(x, 2).flatten(1))


KINDS = ["plain", "residual", "depthwise", "grouped", "gate", "stack"]


@given(
    st.lists(st.sampled_from(KINDS), max_size=4),
    st.sampled_from([4, 6]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1000),
)
@settings(deadline=None, max_examples=40)
def test_any_network_computes_the_same(kinds, width, affine, bias, seed):
    build = lambda: Joined(kinds, width, affine=affine, bias=bias)  # noqa: E731
    assert is_permuted(*permuted_pair(build, density=0.5, seed=seed))


# --- broken versions -----------------------------------------------------------------------------


def inputs_forgotten(tensors, parts, orders):
    """Permute outputs of layers, but not the inputs of those that read them."""
    own = {step.node for step in parts.ops}
    outputs = {node: order for node, order in orders.items() if node in own}
    broken = dict(tensors)
    for step in parts.ops:
        name = f"{step.node.target}.weight"
        if name in tensors and step.node in outputs:
            broken[name] = tensors[name][outputs[step.node]]
    return broken


def norms_forgotten(tensors, parts, orders):
    """Leave the statistics of batch norm in their old order."""
    new = reordered(tensors, parts, orders)
    return {name: tensors[name] if "running" in name else own for name, own in new.items()}


@pytest.mark.parametrize("broken", [inputs_forgotten, norms_forgotten])
def test_a_broken_permutation_is_noticed(broken, monkeypatch):
    monkeypatch.setattr("gemkit.sanity.units.reordered", broken)
    part = REGISTRY.build("models", "conv4")
    with pytest.raises(CheckError, match="changes its outputs"):
        permuted_pair(lambda: part.build(SHAPE, 10))


def masks_forgotten(ticket, control):
    """Permute weights under the old mask."""
    return replace(control, mask=ticket.mask)


def no_op(ticket, control):
    return ticket


@pytest.mark.parametrize("broken", [masks_forgotten, no_op])
def test_a_broken_control_is_noticed(broken):
    part = REGISTRY.build("models", "conv4")
    ticket, control, context = permuted_pair(lambda: part.build(SHAPE, 10))
    assert is_permuted(ticket, control, context)
    assert not is_permuted(ticket, broken(ticket, control), context)


def test_shortcuts_that_hide_from_tracing_are_noticed():
    """A hook scales every unit by its place, and tracing does not call hooks of layers."""

    class Sly(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(72, 8), nn.Linear(8, 10)
            self.first.register_forward_hook(lambda *what: what[2] * torch.arange(8.0).double())

        def forward(self, x):
            return self.last(torch.relu(self.first(x.flatten(1))))

    with pytest.raises(CheckError, match=r"Sly changes its outputs.*leave this check out"):
        permuted_pair(Sly, (2, 6, 6))


# --- what is refused -----------------------------------------------------------------------------


class Branching(nn.Module):
    """Decides by the values of the image, which tracing cannot follow."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(72, 8), nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.one(x.flatten(1))
        return self.two(hidden if hidden.sum() > 0 else -hidden)


class Sorted(nn.Module):
    """Sorts its hidden units, a step that is not understood."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(72, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.two(torch.sort(self.one(x.flatten(1)), 1).values)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Branching, r"forward pass of Branching cannot be traced \(.*\), so it is unknown which"),
        (Sorted, r"no hidden units of Sorted can be permuted: what 'sort' do to channels"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 3)), "can be permuted: it has none"),
    ],
)
def test_a_network_whose_units_are_unknown_is_refused_before_anything_is_computed(network, words):
    context = context_with("random", network=network)
    with pytest.raises(CheckError, match=words):
        PERMUTE.check_fit(context)


def test_images_and_classes_keep_their_order():
    parts, units = hidden_units(REGISTRY.build("models", "conv4").build(SHAPE, 10), SHAPE)
    fixed = {
        unit
        for step in parts.ops
        if step.node.op == "placeholder" or isinstance(step, Opaque)
        for node in (step.node, *step.inputs)
        for unit in units.of.get(node, ())
    }
    assert len(fixed) == 3 + 10
    assert not fixed & {unit for own in units.classes for unit in own}
    assert sorted(map(len, units.classes)) == [16, 32, 64, 64]


# --- training ------------------------------------------------------------------------------------


def test_a_permuted_ticket_trains_to_the_same_network():
    context = replace(
        context_with("gem_miner", finetune=Plan(epochs=3, batch_size=16, lr=0.1)),
        runtime=Runtime(device="cpu", precision="64"),
    )
    ticket = context.search()
    control = fair_control(PERMUTE, ticket, context)
    trained = []
    for one in (ticket, control):
        model = context.finetune(one).apply(context.network()).double().eval()
        with torch.no_grad():
            trained.append(model(images(context.data.shape)))
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-5)  # tickets are saved in float32
    start = ticket.apply(context.network()).double().eval()
    assert not torch.allclose(start(images(context.data.shape)), trained[0], rtol=1e-2)


def test_its_verdict_is_read_the_other_way_round():
    context = context_with("random")
    results = list(trials(context.search(), {"permute": PERMUTE}, range(3), context))
    for seed in range(3):
        ticket, control = (one for one in results if one.seed == seed)
        assert control.before == pytest.approx(ticket.before, abs=1e-6)
    [verdict] = verdicts(results, expects={"permute": PERMUTE.expects})
    assert (verdict.outcome, verdict.expects) == ("passes", "same")
    [wrong] = verdicts(results)
    assert wrong.outcome == "fails", "as a control that should be worse it would fail"


def test_a_permuted_copy_lies_behind_a_barrier():
    """The two are one function, but the networks between them are others."""

    def build():
        return nn.Sequential(nn.Flatten(), nn.Linear(72, 6), nn.ReLU(), nn.Linear(6, 10))

    context = context_with(
        "random",
        network=build,
        density=1.0,
        data=tiny_data(classes=10, samples=80),
        finetune=Plan(epochs=60, batch_size=16, lr=0.05),
    )
    trained = context.finetune(context.search())
    control = fair_control(PERMUTE, trained, context)
    errors = errors_between(trained, control, context, points=11, renew_statistics=True)
    assert (errors[0], errors[-1]) == (0.0, 0.0)
    assert barrier_of(errors) > 0.2


def test_the_same_seed_permutes_in_the_same_way():
    context = context_with("random")
    ticket = context.search()
    one, again = (fair_control(PERMUTE, ticket, context) for _ in range(2))
    other = fair_control(PERMUTE, ticket, replace(context, seed=1))
    assert one == again
    assert one != other
