"""Clipping and accumulation: what they do to the gradients of a step, and what they leave alone."""

import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kept import PLAN, Recorder, find, tune
from lightning_fabric import Fabric
from tiny import CPU
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gemkit import Plan, load_plugins
from gemkit.core.errors import TrainingError
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator
from gemkit.pruning.masked import MaskedNet
from gemkit.training import optimizers
from gemkit.training.device import make_fabric, place
from gemkit.training.optimizers import make_optimizer
from gemkit.training.trainer import Trainer

REGISTRY = load_plugins(only=[])


def no_norm():
    """A network without batch statistics, which depend on what else is in a part."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )


def net_of(kind, model):
    names = prunable_names(model)
    if kind == "weights":
        return MaskedNet(model, names)
    return MaskedNet.learning(model, names, REGISTRY.recipe("gem_miner"), generator(0, "scores"))


def trainer_of(plan, kind="weights", net=no_norm, fabric=None):
    fabric = fabric or make_fabric(CPU)
    trainer = Trainer(net_of(kind, place(net(), fabric, CPU)), plan, fabric, CPU)
    trainer.module.train()
    return trainer


def seen_gradients(trainer, batch):
    """Take a step; return the gradients that the optimizer got, after all hooks."""
    seen = []
    trainer.optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.extend(one.grad.clone() for one in trainer.net.trainable())
    )
    trainer.step(batch, lr=0.0)
    return seen


def batch_of(size, seed=0):
    rng = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 2, 6, 6, generator=rng)
    return images, torch.randint(3, (size,), generator=rng)


def norm_of(gradients):
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))


# --- clipping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["weights", "scores"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lion", torch.optim.RMSprop])
def test_the_norm_of_what_the_optimizer_gets_is_bounded(kind, optimizer):
    plain = Plan(lr=0.1, optimizer=optimizer, weight_decay=0.0)
    whole = seen_gradients(trainer_of(plain, kind), batch_of(8))
    most = norm_of(whole) / 2
    clipped = plain.model_copy(update={"clip_grad": most})
    found = seen_gradients(trainer_of(clipped, kind), batch_of(8))
    assert norm_of(found) == pytest.approx(most, rel=1e-4)
    for one, before in zip(found, whole, strict=True):
        torch.testing.assert_close(one, before / 2, rtol=1e-4, atol=1e-8)
    loose = plain.model_copy(update={"clip_grad": 4 * most})
    for one, before in zip(
        seen_gradients(trainer_of(loose, kind), batch_of(8)), whole, strict=True
    ):
        assert torch.equal(one, before)


def test_clipping_that_is_left_out_would_be_noticed(monkeypatch):
    monkeypatch.setattr(optimizers, "_clip", lambda *given: None)
    plan = Plan(lr=0.1, clip_grad=1e-3)
    assert norm_of(seen_gradients(trainer_of(plan), batch_of(8))) > 1e-2


def test_pruned_weights_do_not_count_in_the_norm():
    plan = Plan(lr=0.1, clip_grad=1e-3)
    trainer = trainer_of(plan)
    alive = {name: torch.rand(q.shape) < 0.5 for name, q in trainer.net.alive.items()}
    trainer.net.freeze_(alive, {})
    found = seen_gradients(trainer, batch_of(8))
    assert norm_of(found) == pytest.approx(1e-3, rel=1e-4)
    for parameter, gradient in zip(trainer.net.trainable(), found, strict=True):
        for name, own in trainer.net.parameters.items():
            if own is parameter:
                assert (gradient[~alive[name]] == 0).all()


class Reads(TorchDispatchMode):
    """Notes what would read a value from the device."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if any(word in name for word in ("_local_scalar_dense", "is_nonzero", "nonzero")):
            self.seen.append(name)
        return func(*args, **kwargs or {})


def test_clipping_reads_nothing_from_the_device():
    own = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(2, 2))]
    optimizer = make_optimizer(Plan(lr=0.1, clip_grad=0.1), own)
    for parameter in own:
        parameter.grad = torch.ones_like(parameter)
    with Reads() as reads:
        optimizer.step()
    assert reads.seen == []
    with Reads() as reads:
        torch.nn.utils.clip_grad_norm_(own, 0.1, error_if_nonfinite=True)
    assert reads.seen, "a look at the norm would be noticed"


# --- accumulation --------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    size=st.integers(2, 13), parts=st.integers(2, 20), kind=st.sampled_from(["weights", "scores"])
)
def test_parts_of_a_batch_add_up_to_its_gradient(size, parts, kind):
    whole, split = (trainer_of(Plan(lr=0.1, accumulate=count), kind) for count in (1, parts))
    expected, found = (seen_gradients(one, batch_of(size)) for one in (whole, split))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert split.mean_loss() == pytest.approx(whole.mean_loss(), rel=1e-5)


@pytest.mark.parametrize(
    ("size", "parts", "sizes"),
    [
        (10, 4, [3, 3, 2, 2]),
        (8, 2, [4, 4]),
        (5, 4, [3, 2]),
        (3, 2, [3]),
        (1, 3, [1]),
        (8, 1, [8]),
    ],
)
def test_a_batch_is_split_evenly_and_no_part_has_less_than_two_images(size, parts, sizes):
    trainer, seen = trainer_of(Plan(lr=0.1, accumulate=parts)), []
    trainer.net.model[0].register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    trainer.step(batch_of(size), lr=0.1)
    assert seen == sizes


def test_parts_that_all_count_the_same_would_be_noticed(monkeypatch):
    whole = Trainer._pass
    monkeypatch.setattr(
        Trainer, "_pass", lambda self, x, y, share=None: whole(self, x, y, share and 1 / 2)
    )
    plans = [Plan(lr=0.1, accumulate=count) for count in (1, 2)]
    one, other = (seen_gradients(trainer_of(plan), batch_of(5)) for plan in plans)
    assert any(not torch.allclose(a, b, rtol=1e-3) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("change", [{"clip_grad": 0.5}, {"accumulate": 2}])
def test_a_search_and_a_fine_tuning_notice_them(change):
    plan = PLAN.model_copy(update=change)
    ticket = find("learned", Recorder())
    assert find("learned", Recorder(), plan=plan).digest() != ticket.digest()
    assert tune(ticket, Recorder(), plan=plan).digest() != tune(ticket, Recorder()).digest()


def test_a_step_that_is_left_out_leaves_no_gradients():
    plan = Plan(lr=0.1, accumulate=2, on_nan="skip")
    trainer, (images, labels) = trainer_of(plan), batch_of(8)
    before = [one.detach().clone() for one in trainer.net.trainable()]
    bad = images.clone()
    bad[-1] = math.nan  # only in the second part
    assert not trainer.step((bad, labels), lr=0.1)
    assert all(one.grad is None for one in trainer.net.trainable())
    assert all(map(torch.equal, before, trainer.net.trainable()))
    assert trainer.step((images, labels), lr=0.1)
    with pytest.raises(TrainingError, match="the loss is nan; the images of this batch"):
        trainer_of(plan.model_copy(update={"on_nan": "stop"})).step((bad, labels), lr=0.1, number=1)


def test_processes_wait_for_each_other_once_a_step(monkeypatch):
    trainer, waits = trainer_of(Plan(lr=0.1, accumulate=3)), []

    def noted(module, enabled):
        waits.append(not enabled)
        return nullcontext()

    monkeypatch.setattr(trainer.fabric, "no_backward_sync", noted)
    trainer.step(batch_of(12), lr=0.1)
    assert waits == [False, False, True]


def shared_gradients(fabric, parts):
    """Return the gradients of one step on a batch that processes share."""
    torch.set_num_threads(1)
    trainer = trainer_of(Plan(lr=0.1, accumulate=parts), fabric=fabric)
    images, labels = batch_of(12)
    own = slice(fabric.global_rank, None, fabric.world_size)
    found = seen_gradients(trainer, (images[own], labels[own]))
    return [gradient.tolist() for gradient in found]


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_processes_average_the_gradients_of_all_parts():
    expected = seen_gradients(trainer_of(Plan(lr=0.1)), batch_of(12))
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    found = fabric.launch(shared_gradients, 3)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(one), other, rtol=1e-4, atol=1e-6)
