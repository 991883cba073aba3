"""Scoring shows how far it is, and a signal stops it within a pass, to be resumed to the bit."""

import itertools
import os
import signal
from functools import cache
from pathlib import Path

import pytest
import torch
from cli_runs import TINY, commands_in
from tiny import CPU, PLAN, tiny_data, tiny_net

import gemkit
from gemkit import MeasuredScores, Wanted
from gemkit.core.errors import Stopped
from gemkit.core.events import Froze, PhaseStarted, Scoring
from gemkit.core.probe import Probe
from gemkit.plugins.loader import load_plugins
from gemkit.training.checkpointer import DiskCheckpointer


class Drawn(MeasuredScores):
    """Scores that pass batches through the network, and draw random numbers in between."""

    name = "drawn"

    def batches_wanted(self):
        return Wanted(3)

    def importance(self, probe: Probe):
        total = {name: torch.zeros_like(weight) for name, weight in probe.weights.items()}
        for turn in range(3):
            probe.loss(probe.weights, turn)
            for value in total.values():
                value += torch.rand(value.shape, generator=probe.rng)
        return total


RECIPES = {
    "snip": ("snip", {"scores": {"batches": 4}}),
    "grasp": ("grasp", {"scores": {"batches": 3}}),
    "synflow": ("synflow", {"schedule": {"rounds": 5}}),
    "random in rounds": ("synflow", {"schedule": {"rounds": 3}, "scores": Drawn()}),
    "weights return": ("rigl", {"schedule": {"every": 2}}),
}
PASSES = {"snip": 4, "grasp": 6, "synflow": 5, "random in rounds": 9, "weights return": None}


registry = cache(lambda: load_plugins(only=()))


def search(name, **how):
    pruner, changes = RECIPES[name]
    recipe = registry().recipe(pruner)
    for role, own in changes.items():
        part = getattr(recipe, role)
        new = own if isinstance(own, MeasuredScores) else part.model_copy(update=own)
        recipe = recipe.model_copy(update={role: new})
    plan = PLAN.model_copy(update={"allow_ties": True, "batch_size": 4})
    return gemkit.search(
        recipe,
        tiny_net(),
        tiny_data(),
        density=0.5,
        plan=plan,
        runtime=CPU,
        on_collapse="warn",
        progress=False,
        **how,
    )


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.filterwarnings("ignore::gemkit.GemkitWarning")
def test_scoring_that_is_stopped_at_any_pass_resumes_to_the_same_bits(name, tmp_path):
    passes = []
    whole = search(name, observers=[lambda event: passes.append(event)])
    scoring = [event for event in passes if isinstance(event, Scoring)]
    assert len(scoring) == (PASSES[name] or len(scoring)) >= 4
    stops = itertools.chain(range(len(scoring)), itertools.repeat(None))
    lives = 0
    while True:
        stop, seen = next(stops), []

        def asked(stop=stop, seen=seen):
            return signal.SIGTERM if stop is not None and len(seen) > stop else None

        def hear(event, seen=seen):
            seen.extend([event] if isinstance(event, Scoring) else [])

        kept = DiskCheckpointer(tmp_path / str(name), "a run", asked_to_stop=asked)
        try:
            found = search(name, observers=[hear], checkpointer=kept)
        except Stopped:
            assert len(seen) == stop + 1, "no pass begins after the signal"
            lives += 1
            continue
        break
    assert lives >= 2
    assert found.digest() == whole.digest()


def test_rounds_and_batches_are_counted():
    events = []
    search("random in rounds", observers=[events.append])
    scoring = [event for event in events if isinstance(event, Scoring | Froze)]
    counted = [(e.freeze, e.passes) for e in scoring if isinstance(e, Scoring)]
    assert counted == [(freeze, passes) for freeze in (1, 2, 3) for passes in (1, 2, 3)]
    assert {(e.freezes, e.batches) for e in scoring if isinstance(e, Scoring)} == {(3, 3)}
    assert [type(e) for e in scoring[3::4]] == [Froze] * 3
    assert isinstance(events[0], PhaseStarted)


def test_an_observer_may_draw_random_numbers_while_scores_are_measured():
    plain = search("synflow")
    drawing = search("synflow", observers=[lambda event: torch.rand(3)])
    assert drawing.digest() == plain.digest()


# --- the command line ----------------------------------------------------------------------------

SNIP = ("run", "--pruner", "snip", *TINY, "-o", "scores.batches=6", "--finetune-epochs", "1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_scoring_within_a_batch(tmp_path, monkeypatch, number):
    command = commands_in(tmp_path, monkeypatch)
    assert command(*SNIP, "--out", "whole").exit_code == 0
    loss, passes = Probe.loss, []

    def signalled(self, *values, **others):
        passes.append(1)
        if len(passes) == 3:
            os.kill(os.getpid(), number)
        return loss(self, *values, **others)

    with monkeypatch.context() as patch:
        patch.setattr(Probe, "loss", signalled)
        shown = command(*SNIP, "--out", "run")
    assert shown.exit_code == 128 + number
    assert len(passes) == 3
    assert f"stopped by {number.name}; resume with: gemkit resume run" in shown.stderr
    assert not Path("run/ticket.safetensors").exists()
    assert command("resume", "run").exit_code == 0
    for name in ("ticket.safetensors", "finetuned.safetensors"):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()


def test_rounds_of_a_search_that_trains_nothing_print_lines(tmp_path, monkeypatch):
    command = commands_in(tmp_path, monkeypatch)
    words = ("run", "--pruner", "synflow", "-o", "schedule.rounds=20", *TINY)
    shown = command(*words, "--finetune-epochs", "0", "--out", "run")
    lines = [line for line in shown.stderr.splitlines() if line.startswith("scoring")]
    assert len(lines) == 10
    assert lines[-1].startswith("scoring 20/20  density 0.3")
    assert lines[-1].endswith("  0 s left")
