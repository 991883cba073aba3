"""Runs whose files were lost or exchanged: they resume, or say why not and what to do."""

import errno
import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from cli_runs import TINY, Gemkit, answer, commands_in
from kept import PLAN, Killed, Mortal, Recorder
from tiny import CPU, tiny_data, tiny_net

from gemkit import Data, RunConfig, evaluate, finetune, run, search
from gemkit.core.errors import DataError, TicketError, TrainingError
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpoint import CheckpointDir
from gemkit.training.checkpointer import DiskCheckpointer

RUN = ("run", "--pruner", "gem_miner", *TINY, "--checkpoint-minutes", "0", "--out")


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    """Return a function that runs a command in an empty folder."""
    return commands_in(tmp_path, monkeypatch)


def stop_at(monkeypatch, look: int) -> None:
    """Send a signal to a run at the n-th call of its checkpointer."""
    whole, looks = DiskCheckpointer.maybe_save, iter(range(1, 1000))

    def signal_and_save(self: DiskCheckpointer, *, epoch_ended: bool = False) -> None:
        if next(looks) == look:
            os.kill(os.getpid(), signal.SIGTERM)
        whole(self, epoch_ended=epoch_ended)

    monkeypatch.setattr(DiskCheckpointer, "maybe_save", signal_and_save)


def lines(folder: str) -> list[dict]:
    found = map(json.loads, Path(folder, "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in one.items() if name != "seconds"} for one in found]


@pytest.mark.parametrize("damage", ["lost", "cut", "flipped"])
def test_a_run_without_its_metrics_resumes_to_the_same_files(gemkit, monkeypatch, damage):
    assert gemkit(*RUN, "whole").exit_code == 0
    stop_at(monkeypatch, 14)
    assert gemkit(*RUN, "run").exit_code == 143
    file = Path("run/metrics.jsonl")
    content = bytearray(file.read_bytes())
    content[60] ^= 1
    file.write_bytes({"lost": b"", "cut": content[:30], "flipped": content}[damage])
    if damage == "lost":
        file.unlink()
    resumed = gemkit("resume", "run")
    assert resumed.exit_code == 0, resumed.stderr
    words = "warning: run/metrics.jsonl was lost or changed after the run was saved; it is restored"
    assert resumed.stderr.count(words) == 1
    assert words in Path("run/log.txt").read_text()
    assert lines("run") == lines("whole")
    for name in ("ticket.safetensors", "finetuned.safetensors"):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()


def test_a_ticket_exchanged_during_fine_tuning_is_refused(gemkit, monkeypatch):
    stop_at(monkeypatch, 14)
    assert gemkit(*RUN, "run").exit_code == 143
    file = Path("run/ticket.safetensors")
    own = file.read_bytes()
    ticket = Ticket.load(file)
    ticket.with_info(seed=5).save(file)  # a valid file, with another ticket
    shown = gemkit("resume", "run")
    assert shown.exit_code == 2
    assert "the ticket is not the one that fine-tuning began with; put that one" in shown.stderr
    file.write_bytes(own)
    assert gemkit("resume", "run").exit_code == 0


def test_fine_tuning_from_python_refuses_the_checkpoints_of_another_ticket(tmp_path):
    ours, other = (
        search("random", tiny_net(), tiny_data(), density=0.5, seed=seed) for seed in (0, 1)
    )
    how = {"plan": PLAN, "runtime": CPU, "observers": [Recorder()]}
    with pytest.raises(Killed):
        finetune(ours, tiny_net(), tiny_data(), checkpointer=Mortal(tmp_path / "kept", 3), **how)
    with pytest.raises(TicketError, match="not the one that fine-tuning began with"):
        finetune(other, tiny_net(), tiny_data(), checkpointer=Mortal(tmp_path / "kept"), **how)
    before = CheckpointDir(tmp_path / "kept").newest()[0]
    del before.state["training"]["ticket"]  # as in older checkpoints: not checked
    CheckpointDir(tmp_path / "kept").add(before)
    finetune(ours, tiny_net(), tiny_data(), checkpointer=Mortal(tmp_path / "kept"), **how)


def test_a_run_without_a_checkpoint_does_not_say_that_it_is_saved(gemkit, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointDir, "add", full)
        shown = gemkit(*RUN, "run")
    assert shown.exit_code == 2
    assert "the run has no checkpoint yet: `gemkit resume run` starts it from" in shown.stderr
    assert "last checkpoint" not in shown.stderr
    assert answer(gemkit("resume", "run", "--json"))["run_dir"] == "run"


def data_with(value: float, split: str) -> Data:
    images, labels = next(tiny_data().train.batches(32))
    wrong = images.clone()
    wrong[7:9, 0, 0, 0] = value
    pairs = {name: (wrong if name == split else images, labels) for name in ("validation", "test")}
    return Data.of_tensors(train=(images, labels), classes=3, **pairs)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_test_data_that_are_not_finite_are_not_called_divergence(value):
    ticket = search("random", tiny_net(), tiny_data(), density=0.5, runtime=CPU)
    words = r"the test data have values that are not finite, in 2 inputs of 32 \(the first is num"
    with pytest.raises(DataError, match=words + "ber 7,"):
        evaluate(ticket, tiny_net(), data_with(value, "test"), runtime=CPU)
    with pytest.raises(DataError, match="the validation data have values that are not finite"):
        finetune(ticket, tiny_net(), data_with(value, "validation"), plan=PLAN, runtime=CPU)
    with torch.no_grad():
        diverged = ticket.apply(tiny_net())
        diverged[0].weight.fill_(math.inf)
    weights = ticket.state | {"0.weight": diverged[0].weight.detach().clone()}
    with pytest.raises(TrainingError, match="training has diverged"):
        evaluate(type(ticket)(ticket.mask, weights, ticket.info), tiny_net(), tiny_data())


def test_a_run_refuses_test_data_that_are_not_finite_before_its_search(tmp_path, monkeypatch):
    monkeypatch.setattr("gemkit.runs.setup.load_data", lambda *_, **__: data_with(math.nan, "test"))
    config = RunConfig(pruner="random", model="lenet300", dataset="fake", density=0.5)
    with pytest.raises(DataError, match="the test data have values that are not finite"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
