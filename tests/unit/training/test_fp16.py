"""fp16: the loss is scaled, gradients are unscaled before the update, and bad steps are skipped."""

import copy
import itertools
import math
from functools import partial

import pytest
import torch
from kept import PLAN, Recorder, find, in_lives
from tiny import tiny_data, tiny_net
from torch import nn

from gemkit import Plan, Runtime, evaluate, finetune, load_plugins, search
from gemkit.core.errors import TrainingError
from gemkit.core.events import Noted
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator
from gemkit.pruning.masked import MaskedNet
from gemkit.training.device import make_fabric
from gemkit.training.loss_scale import LossScale
from gemkit.training.trainer import Trainer

HALF = Runtime(device="cpu", precision="fp16")
SINGLE = Runtime(device="cpu")


def trainer_of(runtime, optimizer="sgd"):
    recipe = load_plugins(only=()).recipe("gem_miner", options={"regularizer.weight": 0.01})
    model = tiny_net()
    net = MaskedNet.learning(model, prunable_names(model), recipe, generator(0, "scores"))
    plan = Plan(lr=0.1, weight_decay=0.0, optimizer=optimizer)
    return Trainer(net, plan, make_fabric(runtime), runtime)


def moved(runtime, steps=3):
    trainer = trainer_of(runtime)
    start = {name: score.clone() for name, score in trainer.net.scores.items()}
    for batch in itertools.islice(tiny_data().train.batches(16), steps):
        assert trainer.step(batch, 0.1)
    return {name: score - start[name] for name, score in trainer.net.scores.items()}


def test_a_step_moves_scores_as_in_single_precision():
    half, single = moved(HALF), moved(SINGLE)
    for name, own in single.items():
        torch.testing.assert_close(half[name], own, rtol=0.05, atol=2e-4)
        assert own.abs().max() > 1e-3  # so that the comparison means something


def test_a_penalty_on_scaled_gradients_would_be_noticed(monkeypatch):
    """The broken version: gradients reach the update while they are still scaled."""
    monkeypatch.setattr(LossScale, "unscale_", lambda self, model: True)
    half, single = moved(HALF, 1), moved(SINGLE, 1)
    assert any(
        not torch.allclose(half[name], own, rtol=0.05, atol=2e-4) for name, own in single.items()
    )


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "nadam"])
def test_a_step_that_overflows_is_skipped_and_the_scale_halved(optimizer, first):
    trainer = trainer_of(HALF, optimizer)
    batch = next(iter(tiny_data().train.batches(16)))
    if not first:
        trainer.step(batch, 0.1)
    before = {name: score.clone() for name, score in trainer.net.scores.items()}
    trainer._scale.scale.fill_(2.0**120)
    trainer.step(batch, 0.1)
    assert all(torch.equal(before[name], score) for name, score in trainer.net.scores.items())
    assert trainer._scale.scale == 2.0**119
    trainer._scale.scale.fill_(2.0**10)
    trainer.step(batch, 0.1)
    assert all(score.isfinite().all() for score in trainer.net.scores.values())
    assert trainer.net.now.step == (1 if first else 2)  # the clock counts the steps taken


class Poisoned(nn.Module):
    """Pass activations on, and from some backward pass to another gradients that are NaN."""

    def __init__(self, first=0, last=10**9):
        super().__init__()
        self.first, self.last, self.seen = first, last, 0

    def forward(self, inputs):
        if inputs.requires_grad:
            inputs.register_hook(self._poison)
        return inputs * 1

    def _poison(self, gradient):
        self.seen += 1
        return gradient * math.nan if self.first <= self.seen - 1 < self.last else gradient


def poisoned_run(batch_size, epochs, **when):
    """Fine-tune a network with gradients that are NaN; return what is noted."""
    events = []
    net = nn.Sequential(*tiny_net(), Poisoned(**when))
    dense = search("dense", tiny_net(), tiny_data(), runtime=SINGLE)
    plan = Plan(epochs=epochs, batch_size=batch_size)
    finetune(dense, net, tiny_data(), plan=plan, runtime=HALF, observers=[events.append])
    return [event.message for event in events if isinstance(event, Noted)]


@pytest.mark.parametrize("batch_size", [4, 16])  # eight steps in an epoch, or two
def test_a_run_whose_gradients_are_never_finite_stops(batch_size):
    with pytest.raises(TrainingError, match="no step of a whole epoch had finite gradients in fp1"):
        poisoned_run(batch_size, epochs=9)


def test_skipped_steps_are_noted_once_an_epoch_where_they_are_more_than_a_few():
    noted = poisoned_run(
        4, epochs=3, first=4, last=12
    )  # four of the first eight, and the next four
    assert [note.partition(",")[0] for note in noted] == [
        "4 steps of epoch 1 skipped",
        "4 steps of epoch 2 skipped",
    ]
    assert poisoned_run(4, epochs=1, last=3) == []


@pytest.mark.parametrize(("batch_size", "steps"), [(16, 2), (4, 8)])
def test_a_whole_epoch_may_be_skipped_while_the_scale_falls(batch_size, steps):
    noted = poisoned_run(batch_size, epochs=3, last=steps)
    assert [note.partition(",")[0] for note in noted] == [f"{steps} steps of epoch 1 skipped"]


def test_skipped_steps_are_counted_across_a_checkpoint():
    before, after = trainer_of(HALF), trainer_of(HALF)
    batch = next(iter(tiny_data().train.batches(16)))
    before._scale.scale.fill_(2.0**120)
    before.step(batch, 0.1)
    state = copy.deepcopy(before.state_dict())
    after.load_state_dict(state)
    del state["loss_scale"]["skipped"]  # as in older checkpoints
    assert (after.skipped(), after.skipped()) == (1, 0)
    after.load_state_dict(state)
    assert after.skipped() == 0


def test_scores_and_weights_stay_in_single_precision():
    trainer = trainer_of(HALF)
    trained = [*trainer.net.trainable(), *trainer.net.model.parameters()]
    assert {one.dtype for one in trained} == {torch.float32}


def test_the_network_computes_in_half_precision():
    seen = []
    trainer = trainer_of(HALF)
    trainer.net.model[0].register_forward_hook(lambda module, given, out: seen.append(out.dtype))
    trainer.step(next(iter(tiny_data().train.batches(16))), 0.1)
    assert seen == [torch.float16]


@pytest.mark.parametrize("pruner", ["gem_miner", "snip", "gradual_magnitude"])
def test_a_whole_run_in_half_precision(pruner):
    how = {"plan": Plan(epochs=3, batch_size=16), "runtime": HALF}
    data = tiny_data()
    ticket = search(pruner, tiny_net(), data, density=0.4, on_collapse="warn", **how)
    trained = finetune(ticket, tiny_net(), data, **how)
    assert 0 <= evaluate(trained, tiny_net(), data, runtime=HALF) <= 1
    assert all(value.isfinite().all() for value in trained.state.values())


def test_a_search_in_half_precision_resumes_to_the_same_bits(tmp_path):
    run = partial(find, "learned", device=HALF, plan=PLAN)
    events = Recorder()
    expected = run(events)
    found, again, deaths = in_lives(run, tmp_path, itertools.repeat(5))
    assert (found.digest(), again) == (expected.digest(), events)
    assert deaths
