"""Objectives: losses against torch's own, and a dense network that leaves no trace."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tiny import CPU, tiny_data, tiny_net
from torch import nn

from gemkit import Now, Plan, Runtime, load_plugins, search
from gemkit.builtin.objectives import CrossEntropy, KullbackLeibler
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import call_with, generator
from gemkit.pruning.masked import MaskedNet
from gemkit.training.device import make_fabric, place
from gemkit.training.trainer import Trainer

REGISTRY = load_plugins(only=[])
BATCH = next(iter(tiny_data().train.batches(8, seed=0)))


def strong_net():
    """A network with large outputs, so that the mask matters."""
    net = tiny_net().train()
    with torch.no_grad():
        net[8].weight.mul_(30)
    return net


def trainer_of(objective, model=None):
    model = (model or tiny_net()).train()
    recipe = REGISTRY.recipe("gem_miner")
    net = MaskedNet.learning(model, prunable_names(model), recipe, generator(0, "scores"))
    alive = {
        name: torch.rand(mask.shape, generator=generator(1, name)) < 0.5
        for name, mask in net.alive.items()
    }
    net.freeze_(alive, net.shares)
    return Trainer(net, Plan(lr=0.5), make_fabric(CPU), CPU, objective)


def divergence(sparse, dense):
    """Σ p ln(p/q), written out, its mean over the batch."""
    p, q = torch.softmax(sparse, 1), torch.softmax(dense, 1)
    return (p * (p.log() - q.log())).sum(1).mean()


def test_the_divergence_is_from_the_outputs_of_the_dense_network():
    trainer, dense = trainer_of(KullbackLeibler(weight=3.0), strong_net()), strong_net()
    loss = trainer._loss(*BATCH)
    outputs = copy.deepcopy(trainer.net.model)(BATCH[0])
    expected = divergence(outputs, dense(BATCH[0]))
    torch.testing.assert_close(loss, 3 * expected)
    own = F.kl_div(
        torch.log_softmax(dense(BATCH[0]), 1),
        torch.log_softmax(outputs, 1),
        reduction="batchmean",
        log_target=True,
    )
    torch.testing.assert_close(loss, 3 * own)
    assert loss > 0.01
    with pytest.raises(AssertionError):  # the other way round
        torch.testing.assert_close(loss, 3 * divergence(dense(BATCH[0]), outputs))


def test_no_gradient_reaches_the_dense_network():
    trainer = trainer_of(KullbackLeibler())
    outputs = trainer.net.now.dense(BATCH[0])
    assert not outputs.requires_grad
    trainer._loss(*BATCH).backward()
    given = {name: own.grad.clone() for name, own in trainer.net.parameters.items()}
    model = copy.deepcopy(trainer.net.model)
    model.zero_grad()
    divergence(model(BATCH[0]), outputs).backward()
    for name, gradient in given.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad)


def test_a_whole_network_has_no_divergence():
    model = tiny_net().train()
    outputs = model(BATCH[0])
    loss = KullbackLeibler().loss(outputs, BATCH, Now(dense=lambda images: outputs.detach()))
    assert abs(loss.item()) < 1e-6


def statistics_after(trainer):
    trainer.step(BATCH, lr=0.5)
    return {name: buffer.clone() for name, buffer in trainer.net.model.named_buffers()}


def test_the_dense_network_leaves_batch_statistics_alone():
    plain, compared = (
        statistics_after(trainer_of(None)),
        statistics_after(trainer_of(KullbackLeibler())),
    )
    assert plain["1.num_batches_tracked"] == 1
    assert all(torch.equal(compared[name], own) for name, own in plain.items())


def test_a_dense_pass_through_the_model_itself_would_be_noticed(monkeypatch):
    """The broken version: buffers are the model's own."""

    def careless(net, inputs):
        return call_with(net.model, net.weights, inputs).detach()

    monkeypatch.setattr(MaskedNet, "dense_outputs", careless)
    compared = statistics_after(trainer_of(KullbackLeibler()))
    assert compared["1.num_batches_tracked"] == 2
    plain = statistics_after(trainer_of(None))
    assert not torch.equal(compared["1.running_mean"], plain["1.running_mean"])


def test_the_dense_network_stays_what_it_was_while_scores_learn():
    trainer, dense = trainer_of(KullbackLeibler()), tiny_net().train()
    before = {name: own.clone() for name, own in trainer.net.effective.items()}
    for batch in tiny_data().train.batches(8, seed=0):
        trainer.step(batch, lr=5.0)
    assert any(not torch.equal(own, before[name]) for name, own in trainer.net.effective.items())
    torch.testing.assert_close(trainer.net.now.dense(BATCH[0]), dense(BATCH[0]))


def test_the_dense_network_of_trained_weights_moves_with_them():
    net = MaskedNet(tiny_net().train(), prunable_names(tiny_net()))
    before = net.now.dense(BATCH[0])
    with torch.no_grad():
        net.model[8].weight.mul_(2)
    assert not torch.allclose(net.now.dense(BATCH[0]), before)
    torch.testing.assert_close(net.now.dense(BATCH[0]), copy.deepcopy(net.model)(BATCH[0]))


@pytest.mark.parametrize("precision", ["32", "bf16", "fp16", "64"])
def test_the_dense_network_computes_in_the_precision_of_training(precision):
    """A network that nothing was pruned from is then its own teacher, to the bit."""
    runtime = Runtime(device="cpu", precision=precision)
    fabric = make_fabric(runtime)
    model = place(strong_net(), fabric, runtime)
    net = MaskedNet(model, prunable_names(model))
    trainer = Trainer(net, Plan(lr=0.5), fabric, runtime, KullbackLeibler())
    images, labels = trainer._as_input(BATCH[0]), BATCH[1]
    assert trainer._loss(images, labels).item() == 0
    assert trainer._dense(images).dtype == trainer.module(images).dtype


# --- cross-entropy -------------------------------------------------------------------------------


def test_smoothed_cross_entropy_is_that_of_smoothed_labels():
    outputs, labels = torch.randn(8, 3), BATCH[1]
    share = 0.2
    target = F.one_hot(labels, 3) * (1 - share) + share / 3
    expected = -(target * torch.log_softmax(outputs, 1)).sum(1).mean()
    found = CrossEntropy(smoothing=share).loss(outputs, (BATCH[0], labels), Now())
    torch.testing.assert_close(found, expected)


def test_cross_entropy_has_a_factor():
    outputs = torch.randn(8, 3)
    one, hundred = (CrossEntropy(weight=own).loss(outputs, BATCH, Now()) for own in (1.0, 100.0))
    torch.testing.assert_close(hundred, 100 * one)
    torch.testing.assert_close(one, F.cross_entropy(outputs, BATCH[1]))


def search_with(objective, plan):
    recipe = REGISTRY.recipe("gem_miner", parts={"objective": objective} if objective else {})
    return search(recipe, tiny_net(), tiny_data(), density=0.3, plan=plan, runtime=CPU)


def test_cross_entropy_by_name_is_what_a_search_does_anyway():
    plan = Plan(epochs=3, batch_size=8, lr=0.5)
    usual, named = search_with(None, plan), search_with("cross_entropy", plan)
    assert all(torch.equal(named.mask[name], mask) for name, mask in usual.mask.items())
    other = search_with({"name": "cross_entropy", "smoothing": 0.5}, plan)
    assert any(not torch.equal(other.mask[name], mask) for name, mask in usual.mask.items())


def test_a_search_brings_the_network_closer_to_the_dense_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 16), nn.ReLU(), nn.Linear(16, 3))
    trainer = trainer_of(KullbackLeibler(), model)
    first = trainer._loss(*BATCH).item()
    for _ in range(100):
        trainer.step(BATCH, lr=0.5)
    assert trainer._loss(*BATCH).item() < first / 2


class Counting(CrossEntropy):
    """Has a state without dimensions."""

    name = "counting"

    def init_state(self, weights):
        return {"count": torch.zeros(())}


@pytest.mark.parametrize(
    ("saved", "own"), [(torch.tensor([3.0, 5.0]), 5.0), (torch.tensor(4.0), 4.0)]
)
def test_every_process_loads_its_own_state_or_that_of_all(saved, own):
    """Older files have one state for all processes."""
    trainer = trainer_of(Counting())
    state = {**trainer.state_dict(), "objective": {"count": saved}}
    trainer.fabric = SimpleNamespace(world_size=2, global_rank=1)
    trainer.load_state_dict(state)
    assert trainer._objective_state["count"] == own
