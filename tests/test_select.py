"""`select = "best"`: fine-tuning keeps the network of its best epoch, also when it is resumed."""

import itertools
from functools import partial

import pytest
import torch
from kept import Killed, Mortal, Told, dropping_net, find, in_lives, tune
from tiny import CPU, tiny_data

from gemkit import Plan, evaluate, search
from gemkit.best import Best
from gemkit.checkpoint import Checkpoint, Shelf
from gemkit.errors import CheckpointError, OptionError
from gemkit.events import EpochEnded

LAST = Plan(epochs=4, batch_size=8, lr=3.0, lr_schedule="constant")
"""So fast that the last epoch is not the best."""
BEST = LAST.model_copy(update={"select": "best"})


@pytest.fixture(scope="module")
def ticket():
    return find("gradual", Told())


def accuracies(told):
    return [known["accuracy"] for name, known in told if name == "EpochEnded"]


def test_the_network_of_the_best_epoch_is_kept(ticket):
    told, again = Told(), Told()
    last, best = tune(ticket, told, plan=LAST), tune(ticket, again, plan=BEST)
    assert told == again, "training itself does not change"
    known = accuracies(told)
    epoch = known.index(max(known)) + 1
    assert epoch < len(known)
    assert best.digest() != last.digest()
    # With a constant learning rate, the network of an epoch is that of a shorter training.
    shorter = tune(ticket, Told(), plan=LAST.model_copy(update={"epochs": epoch}))
    assert best.digest() == shorter.digest()
    assert best.kept == ticket.kept


def test_it_is_the_one_with_the_best_validation_accuracy(ticket):
    told = Told()
    best = tune(ticket, told, plan=BEST)
    measured = evaluate(best, dropping_net(), tiny_data(), split="validation", runtime=CPU)
    assert measured == pytest.approx(max(accuracies(told)))


@pytest.mark.parametrize("life", [1, 3, 5])
def test_a_killed_fine_tuning_keeps_the_same_network(ticket, life, tmp_path):
    told = Told()
    trained = tune(ticket, told, plan=BEST)
    again, heard, deaths = in_lives(
        partial(tune, ticket, plan=BEST), tmp_path, itertools.repeat(life + 1)
    )
    assert deaths > 0
    assert (again.digest(), heard) == (trained.digest(), told)


class Net:
    """A network of one number."""

    def __init__(self):
        self.weight = torch.zeros(1)

    def state(self):
        return {"weight": self.weight}

    def restore_(self, state):
        self.weight = state["weight"].clone()


def ended(epoch, accuracy):
    return EpochEnded("finetune", epoch, 0.0, accuracy, 0.5, 0.1, 1.0)


def test_of_equal_epochs_the_earlier_is_kept():
    net = Net()
    best = Best(net)
    best.load_()
    assert net.weight == 0, "without an epoch there is nothing to load"
    for epoch, accuracy in enumerate([0.2, 0.7, 0.7, 0.1], 1):
        net.weight += 1  # in place, as training does
        best(ended(epoch, accuracy))
    best.load_()
    assert net.weight == 2


def test_a_state_that_does_not_fit_the_network_is_refused(ticket, tmp_path):
    with pytest.raises(Killed):
        tune(ticket, Told(), Mortal(tmp_path, 6), plan=BEST)
    found, _ = Shelf(tmp_path).newest()
    assert found.state["best"]["accuracy"] is not None
    found.state["best"]["net"] = {}
    Shelf(tmp_path).add(Checkpoint(found.run, found.phase, found.state))
    with pytest.raises(CheckpointError, match="does not fit: best"):
        tune(ticket, Told(), Mortal(tmp_path), plan=BEST)


def test_a_search_keeps_its_last_mask():
    with pytest.raises(OptionError, match=r"search\.select = 'best'"):
        search("random", dropping_net(), tiny_data(), plan=BEST, runtime=CPU)


def test_a_plan_that_keeps_the_last_says_what_older_files_say():
    assert "select" not in LAST.model_dump()
    assert BEST.model_dump()["select"] == "best"
    assert BEST.lasting(2).select == "best"
