"""A compact network learns what the masked one would, and goes back into the original."""

import pytest
import torch
from compacting import SHAPE, images, lived_, size, ticket_of
from tiny import tiny_data
from torch import nn

from gemkit import Plan, Runtime, evaluate, finetune, load_plugins
from gemkit.compaction import compact
from gemkit.compaction.layers import Norm
from gemkit.compaction.shrinking import taken
from gemkit.errors import CompactionError

REGISTRY = load_plugins(only=[])
DOUBLE = Runtime(device="cpu", precision="64")
PLAN = Plan(epochs=1, batch_size=16, lr=0.05, weight_decay=0.0)
DATA = tiny_data(classes=10, shape=SHAPE, samples=48)
DENSITY = {"mobilenet_v2": 0.3}  # or nothing would pass it
LR = {"mobilenet_v2": 1e-4}  # or rounding would grow a thousandfold with every step
NETWORKS = {
    "conv4": {"width": 6},
    "mobilenet_v2": {"width": 4},
    "resnet18": {"width": 4},
    "resnet20": {"width": 4},
    "wide_resnet28_2": {"width": 3},
}


def network(name, **fields):
    torch.manual_seed(0)
    return REGISTRY.build("models", name, {**NETWORKS[name], **fields}).build(SHAPE, 10).double()


def drawn(name, model):
    return ticket_of(model, DENSITY.get(name, 0.05))


def trained_both_ways(model, ticket, plan=PLAN):
    """Fine-tune under the mask, and compacted; return both in the original network."""
    how = {"plan": plan, "runtime": DOUBLE}
    small = compact(ticket, model, training=True)
    compacted = small.expand(finetune(small.ticket, small.model, DATA, **how))
    return finetune(ticket, model, DATA, **how), compacted, small


def outputs(ticket, model, *, training):
    """Return what the network makes of images, in evaluation or with statistics of the batch."""
    with torch.no_grad():
        return ticket.apply(model).train(training)(images(count=8))


def assert_same(one, other, model, modes=(False, True)):
    for training in modes:
        left, right = (outputs(ticket, model, training=training) for ticket in (one, other))
        assert torch.allclose(left, right, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_expanding_what_was_just_compacted_gives_the_very_ticket(name):
    model = lived_(network(name))
    ticket = ticket_of(model, 0.03)
    small = compact(ticket, model, training=True)
    assert size(small.model) < size(model)
    assert small.expand(small.ticket) == ticket


def test_nothing_fades_before_the_first_batch():
    model = network("conv4")
    model.bn1.momentum = None  # an average over no batches yet
    ticket = ticket_of(model, 0.03)
    small = compact(ticket, model, training=True)
    assert "bn1" in small.fading
    assert small.expand(small.ticket) == ticket


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_training_is_the_same_without_parameters_in_norms(name, optimizer):
    model = lived_(network(name))
    ticket = drawn(name, model)
    plan = PLAN.model_copy(
        update={"optimizer": optimizer, "lr": LR.get(name, 0.05 if optimizer == "sgd" else 1e-3)}
    )
    masked, compacted, small = trained_both_ways(model, ticket, plan)
    assert size(small.model) < size(model)
    first = next(iter(ticket.mask))
    assert not torch.equal(masked.state[first], ticket.state[first])
    assert_same(masked, compacted, model)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_what_remains_decays_as_it_would_have(name):
    """What was removed does not, but that reaches nothing in training."""
    model = lived_(network(name))
    plan = PLAN.model_copy(update={"weight_decay": 0.01, "lr": LR.get(name, 0.05)})
    masked, compacted, small = trained_both_ways(model, drawn(name, model), plan)
    assert_same(masked, compacted, model, modes=[True])
    for name, places in small.places.items():
        one, other = masked.state[name].flatten()[places], compacted.state[name].flatten()[places]
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8), name


@pytest.mark.parametrize("lived", [False, True])
@pytest.mark.parametrize("name", sorted(set(NETWORKS) - {"mobilenet_v2"}))
def test_training_is_the_same_with_norms_and_biases_that_learn(name, lived):
    # A norm with no shift yet makes zero of a constant bias, but for rounding, where ReLU bends.
    model = network(name, bn="affine", bias=lived)
    if lived:
        lived_(model)
    masked, compacted, small = trained_both_ways(model, drawn(name, model))
    assert size(small.model) < size(model)
    assert_same(masked, compacted, model)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_gradients_are_the_same_with_norms_that_learn(name):
    """Also where several steps in a row would make chaos of rounding, as in MobileNet-V2."""
    model = network(name, bn="affine")
    ticket = drawn(name, model)
    small = compact(ticket, model, training=True)
    whole, little = (dict(net.named_parameters()) for net in (model, small.model))
    for net in (ticket.apply(model), small.model):
        loss = nn.functional.cross_entropy(net.train()(images(count=16)), torch.arange(16) % 10)
        loss.backward()
    for name, parameter in little.items():
        gradient = taken({name: whole[name].grad}, small.places)[name]
        assert torch.allclose(gradient, parameter.grad, rtol=1e-9, atol=1e-9), name


def test_statistics_of_channels_that_are_zero_fade_as_in_training():
    """They are not zero after a search, and evaluation uses them."""
    model = lived_(network("conv4"))
    model.bn2.momentum = None  # which averages over all batches
    ticket = ticket_of(model, 0.03)
    masked, compacted, small = trained_both_ways(model, ticket)
    assert {"bn1", "bn2"} <= set(small.fading)
    for name, fading in small.fading.items():
        for own in ("running_mean", "running_var"):
            one, other = (
                ticket.state[f"{name}.{own}"][fading.channels] for ticket in (masked, compacted)
            )
            assert torch.allclose(one, other, rtol=1e-10, atol=0)
            assert (one != 0).all()


def test_a_shift_that_learns_is_kept_and_would_be_missed(monkeypatch):
    """A norm's shift of zero is at rest only where a ReLU passes nothing back."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.Conv2d(8, 4, 3, bias=False),
        nn.Flatten(),
        nn.Linear(64, 10, bias=False),
    ).double()
    ticket = ticket_of(model, 0.2)
    ticket.mask["0.weight"][:4] = False
    masked, compacted, small = trained_both_ways(model, ticket)
    assert small.model[0].out_channels == 8
    assert_same(masked, compacted, model)

    def hasty(self, known):
        self.clipped = True
        return honest(self, known)

    honest = Norm.signal
    monkeypatch.setattr(Norm, "signal", hasty)
    masked, compacted, small = trained_both_ways(model, ticket)
    assert small.model[0].out_channels < 8
    with pytest.raises(AssertionError):
        assert_same(masked, compacted, model)


def test_a_bias_that_is_zero_will_learn():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(288, 10)).double()
    model[0].bias.data.zero_()
    ticket = ticket_of(model, 1.0)
    ticket.mask["0.weight"][:4] = False
    masked, compacted, small = trained_both_ways(model, ticket)
    assert small.model[0].out_channels == 8
    assert compact(ticket, model).model[0].out_channels == 4
    assert_same(masked, compacted, model)


def test_a_weight_that_is_zero_but_not_pruned_will_learn():
    model = network("conv4")
    ticket = ticket_of(model, 1.0)
    ticket.mask["conv2.weight"][:] = True
    ticket.state["conv2.weight"][:3] = 0
    assert compact(ticket, model, training=True).model.conv2.out_channels == 12
    assert compact(ticket, model).model.conv2.out_channels < 12


def test_what_was_not_made_for_training_cannot_be_expanded():
    model = lived_(network("conv4", bias=True))
    small = compact(ticket_of(model, 0.03), model)
    with pytest.raises(CompactionError, match="training=True"):
        small.expand(small.ticket)


def test_the_compact_ticket_measures_as_the_original_once_statistics_are_settled():
    model = network("conv4")  # fresh: means are zero
    ticket = ticket_of(model, 0.05)
    small = compact(ticket, model, training=True)
    one = evaluate(ticket, model, DATA, runtime=DOUBLE)
    assert one == evaluate(small.ticket, small.model, DATA, runtime=DOUBLE)
