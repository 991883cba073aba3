"""Resuming is exact: a run that dies and goes on ends, to the bit, like one that never died."""

import itertools
from functools import cache, partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kept import PLAN, RECIPES, Killed, Mortal, Told, dropping_net, find, in_lives, tune
from tiny import tiny_net
from torch import nn

from gemkit import Runtime
from gemkit.checkpoint import Checkpoint
from gemkit.errors import CheckpointError, Stopped
from gemkit.freezing import Freezer
from gemkit.keeping import DiskKeeper, GlobalRandom
from gemkit.masking import MaskedNet
from gemkit.phase import Training
from gemkit.rewinding import Rewinder
from gemkit.training import Trainer


@pytest.fixture(autouse=True)
def _not_waiting_for_the_disk(monkeypatch):
    """Here processes only die in make-believe, so nothing need outlast them."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        PLAN.model_copy(update={"optimizer": "adam", "lr": 0.01}),
        PLAN.model_copy(update={"optimizer": "adamw", "lr": 0.01, "lr_schedule": "multistep"}),
        PLAN.model_copy(update={"momentum": 0.0}),
        PLAN.model_copy(update={"nesterov": True, "warmup_epochs": 1}),
    ],
)
@pytest.mark.parametrize("recipe", ["learned", "gradual"])
def test_search_and_fine_tuning_resume_with_every_optimizer(recipe, plan, tmp_path):
    told = Told()
    ticket = find(recipe, told, plan=plan)
    trained = tune(ticket, told, plan=plan)
    runs = [partial(find, recipe, plan=plan), partial(tune, ticket, plan=plan)]
    (found, first, _), (again, second, deaths) = (
        in_lives(run, tmp_path / str(number), itertools.repeat(3))
        for number, run in enumerate(runs)
    )
    assert (found.digest(), again.digest()) == (ticket.digest(), trained.digest())
    assert first + second == told
    assert deaths == 4


@pytest.fixture(scope="module")
def straight():
    """Return a function that tells the ticket and events of a search that nobody interrupts."""

    @cache
    def known(recipe):
        told = Told()
        return find(recipe, told).digest(), told

    return known


@pytest.mark.parametrize("recipe", RECIPES)
@settings(max_examples=2)
@given(lives=st.lists(st.integers(1, 9), min_size=1, max_size=3))
@example(lives=[3] * 9)
def test_it_does_not_matter_when_a_search_dies(recipe, lives, straight, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    found, told, _ = in_lives(partial(find, recipe), folder, iter(lives))
    assert (found.digest(), told) == straight(recipe)


def large_net():
    """A network whose top scores are found where they were in the step before."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 2000), nn.ReLU(), nn.Linear(2000, 3))


def test_what_is_only_known_to_be_faster_need_not_be_saved(tmp_path):
    run = partial(find, "learned, top k", net=large_net)
    told = Told()
    expected = run(told)
    found, again, deaths = in_lives(run, tmp_path, itertools.repeat(3))
    assert (found.digest(), again) == (expected.digest(), told)
    assert deaths == 4


@pytest.mark.parametrize("compute", ["search", "finetune"])
def test_double_precision_and_the_plain_layout_resume_too(compute, tmp_path):
    runtime = Runtime(device="cpu", precision="64", channels_last=False)
    told = Told()
    ticket = find("learned", told, device=runtime)
    run = partial(find, "learned") if compute == "search" else partial(tune, ticket)
    expected = run(Told(), device=runtime)
    found, _, _ = in_lives(partial(run, device=runtime), tmp_path, itertools.repeat(4))
    assert found.digest() == expected.digest()


def test_a_search_resumes_on_every_device(device, tmp_path):
    """The bits are promised on a CPU; elsewhere, that it goes on and ends."""
    runtime = Runtime(device=device.type)
    found, told, deaths = in_lives(
        partial(find, "learned", device=runtime), tmp_path, itertools.repeat(5)
    )
    assert deaths == 3
    assert len(told) == len({str(event) for event in told})
    assert found.kept > 0


# --- what a state must hold: leave a piece out, and the run ends elsewhere -----------------------


def forgetting(cls, name):
    """Let a class forget a part of its state, as if nobody had thought of it."""
    whole = cls.restore_

    def restore_(self, state):
        whole(self, state | {name: cls.state(self)[name]})

    return restore_


FORGOTTEN = {
    "global random numbers": (GlobalRandom, "cpu", "learned"),
    "momentum": (Trainer, "optimizer", "learned"),
    "running loss": (Trainer, "loss", "learned"),
    "clock": (Training, "clock", "learned"),
    "steps": (Training, "steps", "learned"),
    "epochs": (Training, "epochs", "learned"),
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


@pytest.mark.parametrize("piece", FORGOTTEN)
def test_every_piece_of_the_state_is_needed(piece, straight, tmp_path, monkeypatch):
    cls, name, recipe = FORGOTTEN[piece]

    def equal(folder):
        run = partial(find, recipe)
        found, told, deaths = in_lives(run, folder, iter([7, 3]))
        assert deaths == 2
        return (found.digest(), told) == straight(recipe)

    assert equal(tmp_path / "whole")
    monkeypatch.setattr(cls, "restore_", forgetting(cls, name))
    assert not equal(tmp_path / "broken")


# --- the keeper ----------------------------------------------------------------------------------


def test_the_last_two_checkpoints_are_kept(tmp_path):
    with pytest.raises(Killed):
        find("learned", Told(), Mortal(tmp_path, 7))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "00000007.safetensors",
        "00000008.safetensors",
    ]


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path):
    told = Told()
    expected = find("learned", told)
    with pytest.raises(Killed):
        find("learned", Told(), Mortal(tmp_path, 7))
    newest = tmp_path / "00000008.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    said = []
    found = find("learned", Told(), Mortal(tmp_path, told=said.append))
    assert found.digest() == expected.digest()
    [sentence] = said
    assert "00000008.safetensors is damaged" in sentence
    assert "SHA-256; going on from the one before" in sentence


def test_without_a_sound_checkpoint_nothing_goes_on(tmp_path):
    with pytest.raises(Killed):
        find("learned", Told(), Mortal(tmp_path, 7))
    for file in tmp_path.iterdir():
        file.write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"no sound one.*again in another folder"):
        Mortal(tmp_path)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    with pytest.raises(Killed):
        find("learned", Told(), Mortal(tmp_path, 2))
    with pytest.raises(CheckpointError, match="belong to another configuration"):
        DiskKeeper(tmp_path, "another run")


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    with pytest.raises(Killed):
        find("learned", Told(), Mortal(tmp_path, 2))
    with pytest.raises(CheckpointError, match="does not fit: net: tensors are saved for"):
        find("learned", Told(), Mortal(tmp_path), net=lambda: nn.Sequential(*tiny_net()))
    with pytest.raises(CheckpointError, match=r"does not fit: net: '0\.weight' is saved with"):
        find("learned", Told(), Mortal(tmp_path), net=lambda: _wider())


def _wider():
    net = tiny_net(width=12)
    return nn.Sequential(*net[:-1], nn.Dropout(0.3), net[-1])


def test_who_is_asked_to_stop_finishes_the_step_saves_and_stops(tmp_path):
    told = Told()
    expected = find("learned", told)
    asked = itertools.chain([None] * 5, itertools.repeat(15))
    with pytest.raises(Stopped) as stopped:
        find("learned", Told(), Mortal(tmp_path, minutes=99, asked_to_stop=partial(next, asked)))
    assert stopped.value.signal == 15
    found = find("learned", Told(), Mortal(tmp_path))
    assert found.digest() == expected.digest()


def test_a_run_is_saved_at_epoch_ends_unless_that_is_too_slow(tmp_path):
    """32 images in batches of 8 are 4 steps an epoch; the phase's beginning is saved as well."""
    keeper = Mortal(tmp_path, minutes=99)
    find("learned", Told(), keeper)
    first = keeper.shelf.files()[0].stem
    keeper._cost = 1e9
    keeper.look(epoch_ended=True)
    assert keeper.shelf.files()[0].stem == first
    keeper._cost = 0.0
    keeper.look(epoch_ended=False)
    assert keeper.shelf.files()[0].stem == first
    keeper.look(epoch_ended=True)
    assert int(keeper.shelf.files()[0].stem) == int(first) + 1


def test_a_state_comes_back_as_it_lay_in_memory(tmp_path):
    net = MaskedNet(dropping_net().to(memory_format=torch.channels_last), ["0.weight"])
    keeper = Mortal(tmp_path)
    keeper.shelf.add(Checkpoint("this run", "search", {"net": net.state()}))
    found, flaws = keeper.shelf.newest()
    assert not flaws
    back = found.state["net"]["model"]["0.weight"]
    assert back.stride() == net.parameters["0.weight"].stride()
    assert not back.is_contiguous()
    assert torch.equal(back, net.parameters["0.weight"])
