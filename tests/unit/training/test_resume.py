"""Resuming is exact: a killed and resumed run ends bit for bit like an uninterrupted one."""

import itertools
from functools import cache, partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kept import PLAN, RECIPES, Killed, Mortal, Recorder, dropping_net, find, in_lives, tune
from tiny import tiny_net
from torch import nn

from gemkit import Runtime
from gemkit.core.errors import CheckpointError, Stopped
from gemkit.pruning.freeze import Freezer
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.rewind import Rewinder
from gemkit.training.checkpoint import Checkpoint
from gemkit.training.checkpointer import DiskCheckpointer, GlobalRandom
from gemkit.training.loop import TrainLoop
from gemkit.training.trainer import Trainer


def rmsprop(params, lr, weight_decay):
    return torch.optim.RMSprop(params, lr=lr, weight_decay=weight_decay, momentum=0.5)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        PLAN.model_copy(update={"optimizer": "lion", "lr": 0.01, "lr_schedule": "linear"}),
        PLAN.model_copy(update={"optimizer": "adabelief", "lr": 0.01, "clip_grad": 0.1}),
        PLAN.model_copy(update={"optimizer": rmsprop, "lr": 0.01, "accumulate": 2}),
        PLAN.model_copy(update={"optimizer": "adam", "lr": 0.01}),
        PLAN.model_copy(update={"optimizer": "adamw", "lr": 0.01, "lr_schedule": "multistep"}),
        PLAN.model_copy(update={"momentum": 0.0}),
        PLAN.model_copy(update={"nesterov": True, "warmup_epochs": 1}),
    ],
)
@pytest.mark.parametrize("recipe", ["learned", "gradual"])
def test_search_and_fine_tuning_resume_with_every_optimizer(recipe, plan, tmp_path):
    events = Recorder()
    ticket = find(recipe, events, plan=plan)
    trained = tune(ticket, events, plan=plan)
    runs = [partial(find, recipe, plan=plan), partial(tune, ticket, plan=plan)]
    (found, first, _), (again, second, deaths) = (
        in_lives(run, tmp_path / str(number), itertools.repeat(3))
        for number, run in enumerate(runs)
    )
    assert (found.digest(), again.digest()) == (ticket.digest(), trained.digest())
    assert first + second == events
    assert deaths == 4


@pytest.mark.parametrize("optimizer", ["nadam", rmsprop])
def test_a_search_that_rewinds_resumes_with_other_optimizers(optimizer, tmp_path):
    plan = PLAN.model_copy(update={"optimizer": optimizer, "lr": 0.01})
    told = Recorder()
    expected = find("rewinding", told, plan=plan)
    found, again, deaths = in_lives(
        partial(find, "rewinding", plan=plan), tmp_path, itertools.repeat(5)
    )
    assert (found.digest(), again) == (expected.digest(), told)
    assert deaths > 3


@pytest.fixture(scope="module")
def uninterrupted():
    """Return a function that gives the ticket and events of an uninterrupted search."""

    @cache
    def known(recipe):
        events = Recorder()
        return find(recipe, events).digest(), events

    return known


@pytest.mark.parametrize("recipe", RECIPES)
@settings(max_examples=2)
@given(lives=st.lists(st.integers(1, 9), min_size=1, max_size=3))
@example(lives=[3] * 9)
def test_it_does_not_matter_when_a_search_is_killed(recipe, lives, uninterrupted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    found, events, _ = in_lives(partial(find, recipe), folder, iter(lives))
    assert (found.digest(), events) == uninterrupted(recipe)


def large_net():
    """Return a network that is large enough for the shortcuts of selection."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 2000), nn.ReLU(), nn.Linear(2000, 3))


def test_what_only_saves_time_need_not_be_saved(tmp_path):
    run = partial(find, "learned, top k", net=large_net)
    events = Recorder()
    expected = run(events)
    found, again, deaths = in_lives(run, tmp_path, itertools.repeat(3))
    assert (found.digest(), again) == (expected.digest(), events)
    assert deaths == 4


@pytest.mark.parametrize("compute", ["search", "finetune"])
def test_double_precision_and_the_contiguous_layout_resume(compute, tmp_path):
    runtime = Runtime(device="cpu", precision="64", channels_last=False)
    events = Recorder()
    ticket = find("learned", events, device=runtime)
    run = partial(find, "learned") if compute == "search" else partial(tune, ticket)
    expected = run(Recorder(), device=runtime)
    found, _, _ = in_lives(partial(run, device=runtime), tmp_path, itertools.repeat(4))
    assert found.digest() == expected.digest()


def test_a_search_resumes_on_every_device(fabric, tmp_path):
    """The bits are promised on a CPU; elsewhere, that it goes on and ends."""
    run = partial(find, "learned", fabric=fabric)
    found, events, deaths = in_lives(run, tmp_path, itertools.repeat(5))
    assert deaths == 3
    assert len(events) == len({str(event) for event in events})
    assert found.kept > 0


# --- every piece of the state is needed ----------------------------------------------------------


def without(cls, name):
    """Return a `load_state_dict` that leaves out one piece."""
    original = cls.load_state_dict

    def load_state_dict(self, state):
        original(self, state | {name: cls.state_dict(self)[name]})

    return load_state_dict


PIECES = {
    "global random numbers": (GlobalRandom, "cpu", "learned"),
    "momentum": (Trainer, "optimizer", "learned"),
    "running loss": (Trainer, "loss", "learned"),
    "clock": (TrainLoop, "clock", "learned"),
    "steps": (TrainLoop, "steps", "learned"),
    "epochs": (TrainLoop, "epochs", "learned"),
    "history": (Freezer, "history", "learned"),
    "random numbers of measuring": (Freezer, "rng", "measured by chance"),
    "anchor": (Rewinder, "anchor", "rewinding"),
    "model": (MaskedNet, "model", "gradual"),
    "pruned weights": (MaskedNet, "free", "gradual"),
    "alive": (MaskedNet, "alive", "learned"),
    "scores": (MaskedNet, "scores", "learned"),
    "shares": (MaskedNet, "shares", "learned, top k"),
    "random numbers of rounding": (MaskedNet, "drawn_from", "learned, drawn"),
}


@pytest.mark.parametrize("piece", PIECES)
def test_every_piece_of_the_state_is_needed(piece, uninterrupted, tmp_path, monkeypatch):
    cls, name, recipe = PIECES[piece]

    def equal(folder):
        run = partial(find, recipe)
        found, events, deaths = in_lives(run, folder, iter([7, 3]))
        assert deaths == 2
        return (found.digest(), events) == uninterrupted(recipe)

    assert equal(tmp_path / "whole")
    monkeypatch.setattr(cls, "load_state_dict", without(cls, name))
    assert not equal(tmp_path / "broken")


# --- the checkpointer ----------------------------------------------------------------------------


def test_the_last_two_checkpoints_are_kept(tmp_path):
    with pytest.raises(Killed):
        find("learned", Recorder(), Mortal(tmp_path, 7))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "00000007.safetensors",
        "00000008.safetensors",
    ]


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path):
    events = Recorder()
    expected = find("learned", events)
    with pytest.raises(Killed):
        find("learned", Recorder(), Mortal(tmp_path, 7))
    newest = tmp_path / "00000008.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    said = []
    found = find("learned", Recorder(), Mortal(tmp_path, warn=said.append))
    assert found.digest() == expected.digest()
    [sentence] = said
    assert "00000008.safetensors is damaged" in sentence
    assert "SHA-256; resuming from the one before" in sentence


def test_without_a_valid_checkpoint_a_run_is_not_resumed(tmp_path):
    with pytest.raises(Killed):
        find("learned", Recorder(), Mortal(tmp_path, 7))
    for file in tmp_path.iterdir():
        file.write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"no valid one.*again in another folder"):
        Mortal(tmp_path)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    with pytest.raises(Killed):
        find("learned", Recorder(), Mortal(tmp_path, 2))
    with pytest.raises(
        CheckpointError, match=r"another configuration.*start again in another folder"
    ):
        DiskCheckpointer(tmp_path, "another run")


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    with pytest.raises(Killed):
        find("learned", Recorder(), Mortal(tmp_path, 2))
    with pytest.raises(
        CheckpointError,
        match=r"does not fit: net: tensors are saved for.*older gemkit; start again",
    ):
        find("learned", Recorder(), Mortal(tmp_path), net=lambda: nn.Sequential(*tiny_net()))
    with pytest.raises(CheckpointError, match=r"does not fit: net: '0\.weight' is saved with"):
        find("learned", Recorder(), Mortal(tmp_path), net=lambda: _wider())


def _wider():
    net = tiny_net(width=12)
    return nn.Sequential(*net[:-1], nn.Dropout(0.3), net[-1])


def test_a_run_that_is_asked_to_stop_finishes_the_step_and_saves(tmp_path):
    events = Recorder()
    expected = find("learned", events)
    asked = itertools.chain([None] * 5, itertools.repeat(15))
    with pytest.raises(Stopped) as stopped:
        find(
            "learned", Recorder(), Mortal(tmp_path, minutes=99, asked_to_stop=partial(next, asked))
        )
    assert stopped.value.signal == 15
    found = find("learned", Recorder(), Mortal(tmp_path))
    assert found.digest() == expected.digest()


def test_a_run_is_saved_at_epoch_ends_unless_that_is_too_slow(tmp_path):
    """An epoch has 4 steps; the beginning of the phase is saved as well."""
    checkpointer = Mortal(tmp_path, minutes=99)
    find("learned", Recorder(), checkpointer)
    first = checkpointer.checkpoints.files()[0].stem
    checkpointer._cost = 1e9
    checkpointer.maybe_save(epoch_ended=True)
    assert checkpointer.checkpoints.files()[0].stem == first
    checkpointer._cost = 0.0
    checkpointer.maybe_save(epoch_ended=False)
    assert checkpointer.checkpoints.files()[0].stem == first
    checkpointer.maybe_save(epoch_ended=True)
    assert int(checkpointer.checkpoints.files()[0].stem) == int(first) + 1


def test_a_state_keeps_its_memory_layout(tmp_path):
    net = MaskedNet(dropping_net().to(memory_format=torch.channels_last), ["0.weight"])
    checkpointer = Mortal(tmp_path)
    checkpointer.checkpoints.add(Checkpoint("this run", "search", {"net": net.state_dict()}))
    found, flaws = checkpointer.checkpoints.newest()
    assert not flaws
    back = found.state["net"]["model"]["0.weight"]
    assert back.stride() == net.parameters["0.weight"].stride()
    assert not back.is_contiguous()
    assert torch.equal(back, net.parameters["0.weight"])
