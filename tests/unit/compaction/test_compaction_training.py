"""A compact network trains like the masked one, and expands to the original."""

import pytest
import torch
from compacting import SHAPE, images, randomize_norms_, size, ticket_of
from tiny import tiny_data
from torch import nn

from gemkit import Plan, Runtime, evaluate, finetune, load_plugins
from gemkit.compaction import compact
from gemkit.compaction.layers import BatchNorm
from gemkit.compaction.slicing import gather
from gemkit.core.errors import CompactionError

REGISTRY = load_plugins(only=[])
DOUBLE = Runtime(device="cpu", precision="64")
PLAN = Plan(epochs=1, batch_size=16, lr=0.05, weight_decay=0.0)
DATA = tiny_data(classes=10, shape=SHAPE, samples=48)
DENSITY = {"mobilenet_v2": 0.3}  # at lower density no signal passes
LR = {"mobilenet_v2": 1e-4}  # at higher rates rounding errors grow a thousandfold per step
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


def random_ticket(name, model):
    return ticket_of(model, DENSITY.get(name, 0.05))


def train_both(model, ticket, plan=PLAN):
    """Fine-tune masked and compact; return both as tickets of the original network."""
    how = {"plan": plan, "runtime": DOUBLE}
    small = compact(ticket, model, training=True)
    compacted = small.expand(finetune(small.ticket, small.model, DATA, **how))
    return finetune(ticket, model, DATA, **how), compacted, small


def outputs(ticket, model, *, training):
    """Return the network's outputs in evaluation or training mode."""
    with torch.no_grad():
        return ticket.apply(model).train(training)(images(count=8))


def assert_same(one, other, model, modes=(False, True)):
    for training in modes:
        left, right = (outputs(ticket, model, training=training) for ticket in (one, other))
        assert torch.allclose(left, right, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_expanding_a_compact_ticket_returns_the_original(name):
    model = randomize_norms_(network(name))
    ticket = ticket_of(model, 0.03)
    small = compact(ticket, model, training=True)
    assert size(small.model) < size(model)
    assert small.expand(small.ticket) == ticket


def test_statistics_do_not_decay_before_the_first_batch():
    model = network("conv4")
    model.bn1.momentum = None  # cumulative average, over no batches yet
    ticket = ticket_of(model, 0.03)
    small = compact(ticket, model, training=True)
    assert "bn1" in small.zero_channels
    assert small.expand(small.ticket) == ticket


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_training_is_the_same_with_plain_norms(name, optimizer):
    model = randomize_norms_(network(name))
    ticket = random_ticket(name, model)
    plan = PLAN.model_copy(
        update={"optimizer": optimizer, "lr": LR.get(name, 0.05 if optimizer == "sgd" else 1e-3)}
    )
    masked, compacted, small = train_both(model, ticket, plan)
    assert size(small.model) < size(model)
    first = next(iter(ticket.mask))
    assert not torch.equal(masked.state[first], ticket.state[first])
    assert_same(masked, compacted, model)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_weight_decay_of_kept_weights_is_the_same(name):
    """Removed weights do not decay, but are not used in training."""
    model = randomize_norms_(network(name))
    plan = PLAN.model_copy(update={"weight_decay": 0.01, "lr": LR.get(name, 0.05)})
    masked, compacted, small = train_both(model, random_ticket(name, model), plan)
    assert_same(masked, compacted, model, modes=[True])
    for name, places in small.places.items():
        one, other = masked.state[name].flatten()[places], compacted.state[name].flatten()[places]
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8), name


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("name", sorted(set(NETWORKS) - {"mobilenet_v2"}))
def test_training_is_the_same_with_affine_norms_and_biases(name, random):
    # A norm with a shift of 0 maps a constant bias to 0 up to rounding, where ReLU has its kink.
    model = network(name, bn="affine", bias=random)
    if random:
        randomize_norms_(model)
    masked, compacted, small = train_both(model, random_ticket(name, model))
    assert size(small.model) < size(model)
    assert_same(masked, compacted, model)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_gradients_are_the_same_with_affine_norms(name):
    """Also for MobileNet-V2, where several steps would amplify rounding errors."""
    model = network(name, bn="affine")
    ticket = random_ticket(name, model)
    small = compact(ticket, model, training=True)
    masked, compacted = (dict(net.named_parameters()) for net in (model, small.model))
    for net in (ticket.apply(model), small.model):
        loss = nn.functional.cross_entropy(net.train()(images(count=16)), torch.arange(16) % 10)
        loss.backward()
    for name, parameter in compacted.items():
        gradient = gather({name: masked[name].grad}, small.places)[name]
        assert torch.allclose(gradient, parameter.grad, rtol=1e-9, atol=1e-9), name


def test_statistics_of_zero_channels_decay_as_in_training():
    """They are not zero after a search, and evaluation uses them."""
    model = randomize_norms_(network("conv4"))
    model.bn2.momentum = None  # cumulative average
    ticket = ticket_of(model, 0.03)
    masked, compacted, small = train_both(model, ticket)
    assert {"bn1", "bn2"} <= set(small.zero_channels)
    for name, zeros in small.zero_channels.items():
        for buffer in ("running_mean", "running_var"):
            expected, actual = (
                ticket.state[f"{name}.{buffer}"][zeros.channels] for ticket in (masked, compacted)
            )
            assert torch.allclose(expected, actual, rtol=1e-10, atol=0)
            assert (expected != 0).all()


def test_a_channel_with_a_trainable_shift_is_kept_and_would_be_missed(monkeypatch):
    """A norm's shift of zero gets no gradient only before a ReLU."""
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
    masked, compacted, small = train_both(model, ticket)
    assert small.model[0].out_channels == 8
    assert_same(masked, compacted, model)

    def broken(self, known):
        self.before_relu = True
        return correct(self, known)

    correct = BatchNorm.channels
    monkeypatch.setattr(BatchNorm, "channels", broken)
    masked, compacted, small = train_both(model, ticket)
    assert small.model[0].out_channels < 8
    with pytest.raises(AssertionError):
        assert_same(masked, compacted, model)


def test_a_channel_with_a_bias_of_zero_is_kept_for_training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(288, 10)).double()
    model[0].bias.data.zero_()
    ticket = ticket_of(model, 1.0)
    ticket.mask["0.weight"][:4] = False
    masked, compacted, small = train_both(model, ticket)
    assert small.model[0].out_channels == 8
    assert compact(ticket, model).model[0].out_channels == 4
    assert_same(masked, compacted, model)


def test_a_channel_with_unpruned_zero_weights_is_kept_for_training():
    model = network("conv4")
    ticket = ticket_of(model, 1.0)
    ticket.mask["conv2.weight"][:] = True
    ticket.state["conv2.weight"][:3] = 0
    assert compact(ticket, model, training=True).model.conv2.out_channels == 12
    assert compact(ticket, model).model.conv2.out_channels < 12


def test_a_network_compacted_for_evaluation_cannot_be_expanded():
    model = randomize_norms_(network("conv4", bias=True))
    small = compact(ticket_of(model, 0.03), model)
    with pytest.raises(CompactionError, match="training=True"):
        small.expand(small.ticket)


def test_the_compact_ticket_evaluates_like_the_original_if_running_means_are_zero():
    model = network("conv4")  # new: means are zero
    ticket = ticket_of(model, 0.05)
    small = compact(ticket, model, training=True)
    one = evaluate(ticket, model, DATA, runtime=DOUBLE)
    assert one == evaluate(small.ticket, small.model, DATA, runtime=DOUBLE)
