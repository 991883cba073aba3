"""Values that are not finite stop a run, or skip a step, and are traced to their source."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from cli_runs import TINY, commands_in
from kept import PLAN, Mortal, Recorder, find
from tiny import CPU, tiny_data, tiny_net

from gemkit import Data, finetune, search
from gemkit.core.errors import ImportanceError, TrainingError
from gemkit.core.events import EpochEnded, Noted
from gemkit.core.prunable import prunable_names
from gemkit.pruning.masked import MaskedNet
from gemkit.training.checkpointer import DiskCheckpointer
from gemkit.training.nan_guard import NanGuard, non_finite
from gemkit.training.trainer import Trainer

SKIP = PLAN.model_copy(update={"on_nan": "skip", "lr": 0.05})


def corrupted_data(bad: int = 1) -> Data:
    """Return the tiny data with NaN in some training images."""
    images, labels = (part.clone() for part in next(tiny_data().train.batches(32)))
    good = (images.clone(), labels)
    images[:bad, 0, 0, 0] = math.nan
    return Data.of_tensors(train=(images, labels), validation=good, test=good, classes=3)


def dense():
    return search("dense", tiny_net(), tiny_data(), runtime=CPU)


def tuned(data, plan, heard=(), net=None):
    return finetune(dense(), net or tiny_net(), data, plan=plan, runtime=CPU, observers=[*heard])


def corrupt(monkeypatch, when, how):
    """Corrupt a network after so many steps."""
    original, steps = Trainer.step, itertools.count(1)

    def step(self, *arguments):
        taken = original(self, *arguments)
        if next(steps) == when:
            how(self.net)
        return taken

    monkeypatch.setattr(Trainer, "step", step)


def test_images_that_are_not_finite_stop_training_at_their_step():
    with pytest.raises(TrainingError, match=r"at step \d: the loss is nan; the images of this"):
        tuned(corrupted_data(), PLAN)


def test_scores_of_images_that_are_not_finite_name_the_data_as_a_cause():
    with pytest.raises(ImportanceError, match="look for data that are not finite, a diverging"):
        search("snip", tiny_net(), corrupted_data(32), density=0.5, plan=PLAN, runtime=CPU)


def test_a_layer_that_overflows_is_named():
    ticket = dense()
    ticket.state["3.weight"].mul_(1e30)
    ticket.state["5.weight"].mul_(1e30)
    with pytest.raises(TrainingError, match=r"step 1: .*layer '5' is the first with outputs"):
        finetune(ticket, tiny_net(), tiny_data(), plan=PLAN, runtime=CPU)


def test_weights_that_are_not_finite_are_named():
    ticket = dense()
    ticket.state["5.weight"].fill_(math.inf)
    with pytest.raises(TrainingError, match=r"the parameters of '5\.weight' are not finite"):
        finetune(ticket, tiny_net(), tiny_data(), plan=PLAN, runtime=CPU)


def test_scores_that_are_not_finite_stop_a_search_whose_loss_is_finite(monkeypatch):
    """The mask of a NaN score is zero, so the loss does not show it."""
    corrupt(monkeypatch, 3, lambda net: net.scores["3.weight"][0, 0, 0].fill_(math.nan))
    with pytest.raises(TrainingError, match=r"at step 4: the scores of '3\.weight' are not finite"):
        find("learned", Recorder())
    corrupt(monkeypatch, 3, lambda net: net.scores["3.weight"][0, 0, 0].fill_(math.nan))
    monkeypatch.setattr("gemkit.training.nan_guard.non_finite", lambda net, exempt: None)
    with pytest.raises(ImportanceError):  # only detected at the next freeze
        find("learned", Recorder())


def test_only_the_bad_steps_are_skipped():
    events = []
    trained = tuned(corrupted_data(), SKIP, [events.append])
    skipped = [event.message for event in events if isinstance(event, Noted)]
    assert len(skipped) == SKIP.epochs
    assert all("was left out: its loss is not finite" in message for message in skipped)
    assert all(tensor.isfinite().all() for tensor in trained.state.values())
    assert len([event for event in events if isinstance(event, EpochEnded)]) == SKIP.epochs


def test_a_skip_that_does_not_restore_buffers_is_detected(monkeypatch):
    monkeypatch.setattr(Trainer, "_changing", lambda self: [])
    with pytest.raises(TrainingError, match=r"the statistics of '1\.running_mean' are not finite"):
        tuned(corrupted_data(), SKIP)


def test_skipping_does_not_change_a_run_without_bad_steps():
    stop = SKIP.model_copy(update={"on_nan": "stop"})
    assert tuned(tiny_data(), SKIP).digest() == tuned(tiny_data(), stop).digest()


def test_skipping_everything_is_divergence():
    with pytest.raises(TrainingError, match="no step of a whole epoch had a finite loss"):
        tuned(corrupted_data(32), SKIP)


def test_skipping_does_not_continue_with_a_corrupted_network(monkeypatch):
    corrupt(monkeypatch, 2, lambda net: net.parameters["5.weight"].data.fill_(math.nan))
    with pytest.raises(TrainingError, match=r"diverged at step 3: the parameters of '5\.weight'"):
        tuned(tiny_data(), SKIP)


# --- without synchronizing, the device records the first bad step --------------------------------


def test_a_good_step_never_synchronizes_with_the_device():
    """On the meta device no value can be read."""
    net = MaskedNet(tiny_net(), ["0.weight"])
    meta = torch.device("meta")
    loss = torch.empty((), device=meta)
    NanGuard(net, meta, at_once=False).watch(loss, 1)
    with pytest.raises((RuntimeError, NotImplementedError)):
        NanGuard(net, meta, at_once=True).watch(loss, 1)


def test_check_reports_the_first_bad_step(device):
    net = MaskedNet(tiny_net().to(device), ["0.weight"])
    guard = NanGuard(net, device, at_once=False)
    for step, loss in enumerate((1.0, 2.0, math.inf, 3.0, math.nan), 1):
        guard.watch(torch.tensor(loss, device=device), step)
        if step == 2:
            guard.check(step, 0.1)
    with pytest.raises(TrainingError, match="at step 3: the loss is not finite; by now"):
        guard.check(5, 0.1)


def test_every_kind_of_value_is_checked(device):
    net = tiny_net().to(device)
    masked = MaskedNet(net, prunable_names(net))
    assert non_finite(masked) is None
    net[1].running_var[2] = math.inf
    assert non_finite(masked) == "the statistics of '1.running_var' are not finite"
    with torch.no_grad():
        net[3].weight[0, 0, 0, 0] = -math.inf
    assert non_finite(masked) == "the parameters of '3.weight' are not finite"


# --- nothing bad is saved ------------------------------------------------------------------------


def test_non_finite_values_are_never_saved(tmp_path, monkeypatch):
    original = DiskCheckpointer.maybe_save

    def maybe_save(self, *, epoch_ended=False):
        net = self._parts["net"]
        if self._parts["training"].steps == 3 and net.scores:
            net.scores["3.weight"].data.fill_(math.nan)
        original(self, epoch_ended=epoch_ended)

    monkeypatch.setattr(DiskCheckpointer, "maybe_save", maybe_save)
    checkpointer = Mortal(tmp_path)
    with pytest.raises(TrainingError, match="at step 3: the scores"):
        find("learned", Recorder(), checkpointer)
    for file in checkpointer.checkpoints.files():
        scores = checkpointer.checkpoints.newest()[0].state["net"]["scores"]
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
def test_a_causal_mask_of_infinities_is_allowed(pruner):
    net = tiny_net()
    net.register_buffer("causal", torch.full((3, 3), -math.inf).triu(1))
    ticket = search(
        pruner, net, tiny_data(), density=0.5, plan=PLAN, runtime=CPU, on_collapse="warn"
    )
    trained = finetune(ticket, net, tiny_data(), plan=PLAN, runtime=CPU)
    assert trained.info.stage == "finetuned"
    assert trained.state["causal"].isinf().any(), "the mask is still there"
