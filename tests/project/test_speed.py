"""Measurements of speed measure what they say, and the page shows what was measured."""

import copy
import os
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks import epoch, growth, memory, scoring, selection, speed, startup, step
from benchmarks.apart import alone, race_apart
from benchmarks.drawing import origin
from benchmarks.measure import Effort, raced
from benchmarks.networks import SETTINGS
from benchmarks.usual import PENALTY, usual_step
from gemkit import load_plugins
from gemkit.builtin.regularizers import L2
from gemkit.compaction.timing import Times
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator
from gemkit.pruning.masked import MaskedNet
from gemkit.report.pages import with_results

SMALL = "resnet20 width 8"


def sleeper(seconds, folder):
    """Sleep for so long in every turn, and leave the number of the process behind."""

    def lap():
        assert torch.get_num_threads() == 3
        (folder / str(seconds)).write_text(str(os.getpid()))
        time.sleep(seconds)

    return lap


def test_contenders_are_timed_in_their_own_processes(tmp_path):
    seconds = {"short": 0.01, "long": 0.03}
    makers = {name: partial(sleeper, own, tmp_path) for name, own in seconds.items()}
    times = race_apart(makers, turns=3, threads=3)
    processes = {file.read_text() for file in tmp_path.iterdir()}
    assert len(processes | {str(os.getpid())}) == 3
    assert all(len(own.turns) == 3 for own in times.values())
    assert all(turn >= 0.01 for turn in times["short"].turns)
    assert all(turn >= 0.03 for turn in times["long"].turns)


def test_a_process_alone_has_its_own_threads():
    assert alone(torch.get_num_threads, 2) == 2


def test_ratios_are_taken_turn_by_turn():
    row = raced({"plain": Times((1.0, 2.0, 4.0)), "mine": Times((2.0, 2.0, 2.0))}, "plain")
    assert row["ratios"]["mine"] == [0.75, 1.0, 1.5]
    assert row["milliseconds"]["plain"][1] == 2000


@pytest.fixture
def moved(monkeypatch):
    """Note how many parameters every step of an optimizer has moved."""
    real, found = torch.optim.SGD.step, []

    def noting(optimizer, *given):
        (group,) = optimizer.param_groups
        found.append(sum(one.grad is not None for one in group["params"]))
        return real(optimizer, *given)

    monkeypatch.setattr(torch.optim.SGD, "step", noting)
    return found


@pytest.mark.parametrize("what", step.STEPS)
def test_every_step_takes_place(what, moved):
    once = step.step_of(what, SMALL)
    once()
    first = sum(moved)
    assert first >= len(prunable_names(SETTINGS[SMALL].build()))
    once()
    assert sum(moved) == 2 * first


def test_the_usual_search_computes_what_gemkit_does():
    torch.manual_seed(0)
    setting = SETTINGS[SMALL]
    model, (images, labels) = setting.build().double(), setting.images(8)
    own = copy.deepcopy(model)
    batch = (images.double(), labels)
    usual = usual_step(model, batch, 0.6)
    names = prunable_names(own)
    theirs = {name: _scored(model, name) for name in names}
    recipe = load_plugins(only=[]).recipe("gem_miner")
    recipe = recipe.model_copy(update={"regularizer": L2(weight=PENALTY)})
    net = MaskedNet.learning(own.train(), names, recipe, generator(0, "scores"))
    with torch.no_grad():
        for name, score in net.scores.items():
            score.copy_(theirs[name].score.round_())  # where steps lead out of [0, 1]
    net.freeze_({name: one.alive.bool() for name, one in theirs.items()}, net.shares)
    optimizer = torch.optim.SGD(net.trainable(), lr=1e-3, momentum=0.9)
    before = {name: one.score.detach().clone() for name, one in theirs.items()}
    for _ in range(3):
        usual()
        F.cross_entropy(own(batch[0]), labels).backward()
        net.step(optimizer)
    for name, one in theirs.items():
        assert not torch.equal(one.score, before[name])
        torch.testing.assert_close(net.scores[name], one.score.detach(), rtol=0, atol=1e-13)


def _scored(model, name):
    """Find what holds the scores of a layer of the usual search."""
    layer, _, attribute = name.rpartition(".")
    return model.get_submodule(layer).parametrizations[attribute][0]


@pytest.mark.parametrize("what", epoch.CONTENDERS)
def test_every_epoch_takes_place(what, monkeypatch, moved):
    monkeypatch.setattr(epoch, "STEPS", 2)
    epoch.epochs_of(what, SMALL)()
    layers = len(prunable_names(SETTINGS[SMALL].build()))
    assert sum(moved) >= 2 * epoch.EPOCHS * layers


@pytest.mark.parametrize("scores", scoring.METHODS)
def test_every_score_is_measured(scores):
    assert scoring.scoring_of(scores, SMALL)()


def test_searches_of_some_rounds_take_place():
    assert growth.rounds_of(2)().density == pytest.approx(0.05, abs=1e-3)


def test_selections_are_raced(monkeypatch):
    monkeypatch.setitem(selection.SIZES, "tiny", 1000)
    row = selection.measure("tiny", Effort(turns=1, threads=torch.get_num_threads()))
    assert set(row["ratios"]) == {"kthvalue", "gemkit", "gemkit, ties", "topk", "sort"}
    assert "| tiny |" in selection.table([row | {"subject": "tiny"}])


def test_commands_that_are_timed_work(monkeypatch):
    monkeypatch.setattr(startup, "COMMANDS", dict(list(startup.COMMANDS.items())[:2]))
    row = startup.measure("commands", Effort(turns=1, threads=1))
    assert set(row["milliseconds"]) == set(startup.COMMANDS)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_the_most_that_was_held_is_that_of_the_work_alone():
    before = memory.highest_during(lambda: None)
    assert memory.highest_during(lambda: torch.ones(1 << 26)) - before > 2**27
    assert memory.highest_during(lambda: torch.ones(1 << 22)) - before < 2**27


def test_the_page_is_made_of_the_results():
    page = speed.PAGE.read_text()
    for what, text in speed.tables().items():
        page = with_results(page, f"speed-{what}", text)
    assert page == speed.PAGE.read_text()


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_figure_is_made_of_the_results(kind):
    drawn = (speed.FIGURES / f"speed.{kind}").read_bytes()
    assert origin(speed.LEDGER.rows()).encode() in drawn
