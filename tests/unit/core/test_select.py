"""`select = "best"` keeps the network of the best epoch, also after resuming."""

import itertools
from functools import partial

import pytest
import torch
from kept import Killed, Mortal, Recorder, dropping_net, find, in_lives, tune
from tiny import CPU, tiny_data

from gemkit import Plan, evaluate, search
from gemkit.core.errors import CheckpointError, OptionError
from gemkit.core.events import EpochEnded
from gemkit.training.best import Best
from gemkit.training.checkpoint import Checkpoint, CheckpointDir

LAST = Plan(epochs=4, batch_size=8, lr=3.0, lr_schedule="constant")
"""The learning rate is so high that the last epoch is not the best."""
BEST = LAST.model_copy(update={"select": "best"})


@pytest.fixture(scope="module")
def ticket():
    return find("gradual", Recorder())


def accuracies(events):
    return [known["value"] for name, known in events if name == "EpochEnded"]


def test_the_network_of_the_best_epoch_is_kept(ticket):
    events, again = Recorder(), Recorder()
    last, best = tune(ticket, events, plan=LAST), tune(ticket, again, plan=BEST)
    assert events == again, "the training is the same"
    known = accuracies(events)
    epoch = known.index(max(known)) + 1
    assert epoch < len(known)
    assert best.digest() != last.digest()
    # With a constant learning rate, the network of an epoch is that of a shorter training.
    shorter = tune(ticket, Recorder(), plan=LAST.model_copy(update={"epochs": epoch}))
    assert best.digest() == shorter.digest()
    assert best.kept == ticket.kept


def test_the_best_epoch_has_the_best_validation_accuracy(ticket):
    events = Recorder()
    best = tune(ticket, events, plan=BEST)
    measured = evaluate(best, dropping_net(), tiny_data(), split="validation", runtime=CPU)
    assert measured == pytest.approx(max(accuracies(events)))


@pytest.mark.parametrize("life", [1, 3, 5])
def test_a_killed_fine_tuning_keeps_the_same_network(ticket, life, tmp_path):
    events = Recorder()
    trained = tune(ticket, events, plan=BEST)
    again, heard, deaths = in_lives(
        partial(tune, ticket, plan=BEST), tmp_path, itertools.repeat(life + 1)
    )
    assert deaths > 0
    assert (again.digest(), heard) == (trained.digest(), events)


class Net:
    """A network of one number."""

    def __init__(self):
        self.weight = torch.zeros(1)

    def state_dict(self):
        return {"model": {"weight": self.weight}, "alive": {"weight": torch.ones(1)}}

    def load_state_dict(self, state):
        raise AssertionError("only the model changes")


def ended(epoch, accuracy):
    return EpochEnded("finetune", epoch, 0.0, accuracy, 0.5, 0.1, 1.0)


def test_the_earlier_of_equal_epochs_is_kept():
    net = Net()
    best = Best(net)
    best.load_()
    assert net.weight == 0, "without an epoch there is nothing to load"
    for epoch, accuracy in enumerate([0.2, 0.7, 0.7, 0.1], 1):
        net.weight += 1  # in place, as training does
        best(ended(epoch, accuracy))
    best.load_()
    assert net.weight == 2
    assert best.state_dict()["net"] == {"weight": 2}, "one copy of the model, and no mask"


def test_the_state_of_an_older_version_is_loaded():
    net = Net()
    old = {"model": {"weight": torch.full((1,), 3.0)}, "alive": {"weight": torch.ones(1)}}
    Best(net).load_state_dict({"accuracy": 0.5, "net": old})
    assert net.weight == 3


def test_a_state_that_does_not_fit_the_network_is_refused(ticket, tmp_path):
    with pytest.raises(Killed):
        tune(ticket, Recorder(), Mortal(tmp_path, 6), plan=BEST)
    found, _ = CheckpointDir(tmp_path).newest()
    assert found.state["best"]["accuracy"] is not None
    found.state["best"]["net"] = {}
    CheckpointDir(tmp_path).add(Checkpoint(found.run, found.phase, found.state))
    with pytest.raises(CheckpointError, match="does not fit: best"):
        tune(ticket, Recorder(), Mortal(tmp_path), plan=BEST)


def test_a_search_keeps_its_last_mask():
    with pytest.raises(OptionError, match=r"search\.select = 'best'"):
        search("random", dropping_net(), tiny_data(), plan=BEST, runtime=CPU)


def test_the_default_is_not_written_so_that_old_files_stay_equal():
    assert "select" not in LAST.model_dump()
    assert BEST.model_dump()["select"] == "best"
    assert BEST.lasting(2).select == "best"
