"""Values that are not finite stop a run, or cost it a step, and are traced to their source."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from cli_runs import TINY, commands_in
from kept import PLAN, Mortal, Told, find
from tiny import CPU, tiny_data, tiny_net

from gemkit import Data, finetune, search
from gemkit.errors import ImportanceError, TrainingError
from gemkit.events import EpochEnded, Noted
from gemkit.health import Health, unfinite
from gemkit.keeping import DiskKeeper
from gemkit.masking import MaskedNet
from gemkit.tensors import prunable_names
from gemkit.training import Trainer

SKIP = PLAN.model_copy(update={"on_nan": "skip", "lr": 0.05})


def spoiled_data(bad: int = 1) -> Data:
    """The tiny data, with some training images that are not numbers."""
    images, labels = (part.clone() for part in next(tiny_data().train.batches(32)))
    good = (images.clone(), labels)
    images[:bad, 0, 0, 0] = math.nan
    return Data.of_tensors(train=(images, labels), validation=good, test=good, classes=3)


def dense():
    return search("dense", tiny_net(), tiny_data(), runtime=CPU)


def tuned(data, plan, heard=(), net=None):
    return finetune(dense(), net or tiny_net(), data, plan=plan, runtime=CPU, observers=[*heard])


def ruin(monkeypatch, when, how):
    """Spoil a network after so many steps."""
    whole, steps = Trainer.step, itertools.count(1)

    def step(self, *arguments):
        taken = whole(self, *arguments)
        if next(steps) == when:
            how(self.net)
        return taken

    monkeypatch.setattr(Trainer, "step", step)


def test_images_that_are_not_finite_stop_training_at_their_step():
    with pytest.raises(TrainingError, match=r"at step \d: the loss is nan; the images of this"):
        tuned(spoiled_data(), PLAN)


def test_a_layer_that_overflows_is_named():
    ticket = dense()
    ticket.state["3.weight"].mul_(1e30)
    ticket.state["5.weight"].mul_(1e30)
    with pytest.raises(TrainingError, match=r"step 1: .*layer '5' is the first to put out values"):
        finetune(ticket, tiny_net(), tiny_data(), plan=PLAN, runtime=CPU)


def test_weights_that_are_not_finite_are_named():
    ticket = dense()
    ticket.state["5.weight"].fill_(math.inf)
    with pytest.raises(TrainingError, match=r"the parameters of '5\.weight' are not finite"):
        finetune(ticket, tiny_net(), tiny_data(), plan=PLAN, runtime=CPU)


def test_scores_that_are_not_finite_stop_a_search_whose_loss_looks_well(monkeypatch):
    """The mask of a score that is no number is zero, so the loss does not show it."""
    ruin(monkeypatch, 3, lambda net: net.scores["3.weight"][0, 0, 0].fill_(math.nan))
    with pytest.raises(TrainingError, match=r"at step 4: the scores of '3\.weight' are not finite"):
        find("learned", Told())
    ruin(monkeypatch, 3, lambda net: net.scores["3.weight"][0, 0, 0].fill_(math.nan))
    monkeypatch.setattr("gemkit.health.unfinite", lambda net, meant: None)
    with pytest.raises(ImportanceError):  # not noticed before the next freeze
        find("learned", Told())


def test_skipping_leaves_out_just_the_bad_steps():
    events = []
    trained = tuned(spoiled_data(), SKIP, [events.append])
    left_out = [event.message for event in events if isinstance(event, Noted)]
    assert len(left_out) == SKIP.epochs
    assert all("was left out: its loss is not finite" in message for message in left_out)
    assert all(tensor.isfinite().all() for tensor in trained.state.values())
    assert len([event for event in events if isinstance(event, EpochEnded)]) == SKIP.epochs


def test_a_skip_that_kept_what_the_forward_pass_changed_would_be_noticed(monkeypatch):
    monkeypatch.setattr(Trainer, "_buffers", lambda self: list(self.net.model.buffers()))
    with pytest.raises(TrainingError, match=r"the statistics of '1\.running_mean' are not finite"):
        tuned(spoiled_data(), SKIP)


def test_a_healthy_run_is_the_same_whatever_is_done_about_bad_steps():
    stop = SKIP.model_copy(update={"on_nan": "stop"})
    assert tuned(tiny_data(), SKIP).digest() == tuned(tiny_data(), stop).digest()


def test_skipping_everything_is_divergence():
    with pytest.raises(TrainingError, match="no step of a whole epoch had a finite loss"):
        tuned(spoiled_data(32), SKIP)


def test_skipping_does_not_go_on_with_a_ruined_network(monkeypatch):
    ruin(monkeypatch, 2, lambda net: net.parameters["5.weight"].data.fill_(math.nan))
    with pytest.raises(TrainingError, match=r"diverged at step 3: the parameters of '5\.weight'"):
        tuned(tiny_data(), SKIP)


# --- where looking costs time, the device notes the first bad step itself ------------------------


def test_a_healthy_step_never_waits_for_the_device():
    """On the meta device no value can be read at all."""
    net = MaskedNet(tiny_net(), ["0.weight"])
    meta = torch.device("meta")
    loss = torch.empty((), device=meta)
    Health(net, meta, at_once=False).watch(loss, 1)
    with pytest.raises((RuntimeError, NotImplementedError)):
        Health(net, meta, at_once=True).watch(loss, 1)


def test_the_first_bad_step_is_told_when_somebody_asks(device):
    net = MaskedNet(tiny_net().to(device), ["0.weight"])
    health = Health(net, device, at_once=False)
    for step, loss in enumerate((1.0, 2.0, math.inf, 3.0, math.nan), 1):
        health.watch(torch.tensor(loss, device=device), step)
        if step == 2:
            health.check(step, 0.1)
    with pytest.raises(TrainingError, match="at step 3: the loss is not finite; by now"):
        health.check(5, 0.1)


def test_every_kind_of_value_is_looked_at(device):
    net = tiny_net().to(device)
    masked = MaskedNet(net, prunable_names(net))
    assert unfinite(masked) is None
    net[1].running_var[2] = math.inf
    assert unfinite(masked) == "the statistics of '1.running_var' are not finite"
    with torch.no_grad():
        net[3].weight[0, 0, 0, 0] = -math.inf
    assert unfinite(masked) == "the parameters of '3.weight' are not finite"


# --- nothing bad is saved ------------------------------------------------------------------------


def test_ill_health_never_reaches_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)
    whole = DiskKeeper.look

    def look(self, *, epoch_ended=False):
        net = self._parts["net"]
        if self._parts["training"].steps == 3 and net.scores:
            net.scores["3.weight"].data.fill_(math.nan)
        whole(self, epoch_ended=epoch_ended)

    monkeypatch.setattr(DiskKeeper, "look", look)
    keeper = Mortal(tmp_path)
    with pytest.raises(TrainingError, match="at step 3: the scores"):
        find("learned", Told(), keeper)
    for file in keeper.shelf.files():
        scores = keeper.shelf.newest()[0].state["net"]["scores"]
        assert all(score.isfinite().all() for score in scores.values()), file


def test_on_the_command_line(tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    words = ("run", "--pruner", "random", *TINY, "--finetune-lr", "1e30", "--out", "run")
    shown = gemkit(*words)
    assert shown.exit_code == 2
    assert "training diverged at step" in shown.stderr
    assert "--on-nan skip" in shown.stderr
    assert "Traceback" not in shown.stderr
    config = Path("run/config.toml").read_text()
    assert config.count('on_nan = "stop"') == 2


@pytest.mark.parametrize("pruner", ["gem_miner", "dense"])
def test_a_mask_of_infinities_that_a_network_brings_is_no_illness(pruner):
    net = tiny_net()
    net.register_buffer("causal", torch.full((3, 3), -math.inf).triu(1))
    ticket = search(
        pruner, net, tiny_data(), density=0.5, plan=PLAN, runtime=CPU, on_collapse="warn"
    )
    trained = finetune(ticket, net, tiny_data(), plan=PLAN, runtime=CPU)
    assert trained.info.stage == "finetuned"
    assert trained.state["causal"].isinf().any(), "the mask is still there"
