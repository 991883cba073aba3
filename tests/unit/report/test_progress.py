"""The Python API shows bars where somebody sees them, and issues warnings everywhere."""

import io
import sys
import warnings

import pytest
import torch
from rich.console import Console
from tiny import CPU, PLAN, tiny_data, tiny_net

import gemkit
from gemkit import GemkitWarning, RunConfig
from gemkit.core.events import EpochEnded, Noted, PhaseStarted
from gemkit.report import progress
from gemkit.report.progress import shown
from gemkit.runs.checking import check_run
from gemkit.runs.shown import Shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_terminal(monkeypatch):
    """Put a terminal in the place of stderr; pytest takes it back after a fixture."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def test_a_search_and_a_finetuning_show_bars_on_a_terminal(monkeypatch):
    terminal, data = on_terminal(monkeypatch), tiny_data()
    ticket = gemkit.search("random", tiny_net(), data, density=0.5, plan=PLAN, runtime=CPU)
    assert "search" not in terminal.getvalue(), "it does not train"
    gemkit.finetune(ticket, tiny_net(), data, plan=PLAN, runtime=CPU)
    text = terminal.getvalue()
    assert "fine-tune" in text
    assert f"{PLAN.epochs}/{PLAN.epochs}" in text
    assert "accuracy" in text


def test_scores_on_many_batches_and_in_rounds_show_bars_on_a_terminal(monkeypatch):
    terminal, data = on_terminal(monkeypatch), tiny_data()
    batches = list(data.train.batches(8, seed=0))
    gemkit.importance("snip", tiny_net(), batches, progress=False)
    gemkit.importance("snip", tiny_net(), batches[:1])
    assert "scoring" not in terminal.getvalue()
    plain = gemkit.importance("snip", tiny_net(), batches)
    assert "scoring" in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    again = gemkit.importance("snip", tiny_net(), batches)
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    terminal = on_terminal(monkeypatch)
    gemkit.search("synflow", tiny_net(), data, density=0.5, plan=PLAN, runtime=CPU)
    assert "100/100" in terminal.getvalue()


def test_checks_of_a_run_show_the_bar_of_a_trial(monkeypatch, tmp_path):
    terminal = on_terminal(monkeypatch)
    config = RunConfig(
        pruner="random",
        dataset={"name": "fake", "samples": 60},
        model={"name": "conv4", "width": 4},
        density=0.5,
        finetune={"epochs": 1},
        runtime={"device": "cpu"},
        run={"checks": ["shuffle"], "check_seeds": 1},
    )
    bars = []

    def look(*_: object) -> None:
        bars.append(terminal.getvalue().count("fine-tune"))

    def checked(*values: object) -> object:
        look()
        return check_run(*values)

    monkeypatch.setattr("gemkit.runs.runner.check_run", checked)
    monkeypatch.setattr("gemkit.runs.shown.Shown.measured", look)
    gemkit.run(config, tmp_path / "run")
    before, after = bars  # of the ticket itself the result is known
    assert after > before > 0


@pytest.mark.parametrize("how", ["silenced", "not a terminal", "not the first process", "dumb"])
def test_there_is_no_bar_where_nobody_would_see_it(how, monkeypatch, capsys):
    terminal = on_terminal(monkeypatch)
    if how == "not a terminal":
        monkeypatch.setattr(sys, "stderr", io.StringIO())
    if how == "not the first process":
        monkeypatch.setenv("LOCAL_RANK", "1")
    if how == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    data = tiny_data()
    quiet = {"progress": False} if how == "silenced" else {}
    ticket = gemkit.search(
        "random",
        tiny_net(),
        data,
        density=0.5,
        plan=PLAN,
        runtime=CPU,
        on_collapse="keep-one",
        **quiet,
    )
    gemkit.finetune(ticket, tiny_net(), data, plan=PLAN, runtime=CPU, **quiet)
    assert sys.stderr.getvalue() == terminal.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_notebooks_show_bars_if_rich_can_draw_them(monkeypatch):
    notebook = Console(force_jupyter=True)
    monkeypatch.setattr(progress, "find_spec", lambda name: name == "ipywidgets")
    assert progress._is_seen(notebook)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    assert not progress._is_seen(notebook)


def test_a_phase_inside_another_shows_no_second_bar(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with shown() as outer:
        outer(PhaseStarted("search", 2, 8))
        with shown() as inner:
            inner(PhaseStarted("finetune", 1, 4))
            inner(EpochEnded("finetune", 1, 0.1, 0.9, 1.0, 0.1, 1.0))
        outer(EpochEnded("search", 1, 0.125, 0.75, 1.0, 0.1, 1.0))
    assert "fine-tune" not in terminal.getvalue()
    assert "search" in terminal.getvalue()
    assert not progress._OPEN


@pytest.mark.parametrize("quiet", [{}, {"progress": False}])
def test_frozen_layers_are_named_in_a_warning_at_the_line_of_the_caller(quiet):
    model = tiny_net()
    model[0].requires_grad_(False)
    with pytest.warns(GemkitWarning, match=r"frozen weights .* are not pruned: '0.weight'") as told:
        gemkit.search("snip", model, tiny_data(), density=0.5, runtime=CPU, **quiet)
    assert told[0].filename == __file__


def test_warnings_can_be_filtered():
    with warnings.catch_warnings():
        warnings.simplefilter("error", GemkitWarning)
        with pytest.raises(GemkitWarning, match="mind the gap"), shown() as show:
            show(Noted("mind the gap"))


def test_observers_hear_the_same():
    model, heard = tiny_net(), []
    model[0].requires_grad_(False)
    with pytest.warns(GemkitWarning):
        gemkit.search(
            "snip", model, tiny_data(), density=0.5, runtime=CPU, observers=[heard.append]
        )
    assert any(isinstance(event, Noted) for event in heard)


def test_a_run_shows_bars_and_can_be_silenced(tmp_path, monkeypatch):
    terminal = on_terminal(monkeypatch)
    monkeypatch.setenv("GEMKIT_PLUGINS", "")
    config = RunConfig(
        pruner="random",
        model={"name": "conv4", "width": 4},
        dataset={"name": "fake", "samples": 60},
        density=0.5,
        search=PLAN,
        finetune=PLAN,
        runtime=CPU,
    )
    torch.manual_seed(0)
    gemkit.run(config, tmp_path / "quiet", progress=False)
    assert terminal.getvalue() == ""
    gemkit.run(config, tmp_path / "shown")
    assert "fine-tune" in terminal.getvalue()


def test_the_controls_of_checks_only_warn(capsys):
    hear = Shown().controls()
    hear(PhaseStarted("search", epochs=1, steps=1))
    with pytest.warns(GemkitWarning, match="mind the gap"):
        hear(Noted("mind the gap"))
    assert capsys.readouterr() == ("", "")
