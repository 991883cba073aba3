"""Faults of scores at run time are reported by name and do not affect other parts."""

import json
import re
from pathlib import Path
from textwrap import indent

import pytest
from cli_runs import TINY, commands_in
from tiny import CPU, tiny_data, tiny_net

from gemkit import load_plugins, search

PLUGIN = '''
import torch
from gemkit import MeasuredScores, hookimpl


class Faulty(MeasuredScores):
    """A score with a fault."""

    name = "faulty"

    def importance(self, probe):
        good = {{name: weight.abs() for name, weight in probe.weights.items()}}
{body}


@hookimpl
def gemkit_scores():
    return [Faulty]


@hookimpl
def gemkit_pruners():
    return {{"faulty": {{"scores": "faulty", "help": "Faulty, for tests"}}}}
'''

FAULTS = {
    "no dict": ("return list(good)", "must return a dict"),
    "keys missing": ("return dict(list(good.items())[1:])", "missing: conv1.weight"),
    "keys unknown": ("return {**good, 'other': good['conv1.weight']}", "unknown: other"),
    "no tensor": ("return {n: 1.0 for n in good}", "of type float for 'conv1.weight'"),
    "shape": ("return {n: v.flatten() for n, v in good.items()}", "shape (108,)"),
    "nan": ("return {n: v / 0 * 0 for n, v in good.items()}", "'conv1.weight' has 108 nan"),
    "model in place": (
        "with torch.no_grad():\n    next(probe.model.parameters()).mul_(2)\nreturn good",
        "changed the model they measure (conv1.weight)",
    ),
    "gradients": (
        "free = [p.sum() for p in probe.model.parameters() if p.requires_grad]\n"
        "sum(free).backward()\nreturn good",
        "changed the model they measure",
    ),
    "mode": ("probe.model.eval()\nreturn good", "changed the model they measure (mode of ''"),
    "requires_grad": (
        "probe.model.requires_grad_(False)\nreturn good",
        "changed the model they measure (conv1.weight",
    ),
    "global random numbers": (
        "return {n: torch.rand(v.shape) for n, v in good.items()}",
        "drew global random numbers",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_score_with_a_fault_is_refused_by_name_and_others_stay_usable(
    fault, tmp_path, monkeypatch
):
    body, words = FAULTS[fault]
    file = tmp_path / "faulty.py"
    file.write_text(PLUGIN.format(body=indent(body, " " * 8)))
    gemkit = commands_in(tmp_path, monkeypatch)
    refused = gemkit("run", "--plugin", file, "--pruner", "faulty", *TINY)
    assert refused.exit_code == 2
    assert "scores 'faulty'" in refused.stderr
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr
    fine = gemkit("run", "--plugin", file, "--pruner", "random", *TINY)
    assert fine.exit_code == 0, fine.stderr


RAISING = {
    "in the part": ("return wieghts", "NameError: name 'wieghts' is not defined", "importance"),
    "in a library": ("return torch.stack([])", "RuntimeError: stack expects", "importance"),
    "in a function": ("return helped(good)", "KeyError: 'none'", "helped"),
}


def raising(tmp_path, body):
    file = tmp_path / "faulty.py"
    helper = "\n\ndef helped(good):\n    return good['none']\n"
    file.write_text(PLUGIN.format(body=indent(body, " " * 8)) + helper)
    return file


@pytest.mark.parametrize("place", RAISING)
def test_an_exception_in_a_part_becomes_one_message_that_names_it(place, tmp_path, monkeypatch):
    body, words, function = RAISING[place]
    file = raising(tmp_path, body)
    gemkit = commands_in(tmp_path, monkeypatch)
    shown = gemkit("run", "--plugin", file, "--pruner", "faulty", *TINY, "--out", "run")
    assert shown.exit_code == 1
    assert "gemkit: scores 'faulty' (plugin given as a file) failed" in shown.stderr
    assert words in shown.stderr
    line = 1 + file.read_text().splitlines().index(
        "    return good['none']" if function == "helped" else indent(body, " " * 8)
    )
    assert f"at {file}:{line}, in {function}\n" in shown.stderr
    assert re.search(r"^run keeps .*config\.toml", shown.stderr, re.MULTILINE)
    assert "GEMKIT_TRACEBACK=1" in shown.stderr
    assert "Traceback" not in shown.stderr
    [run] = json.loads(gemkit("runs", "run", "--json").stdout)["runs"]
    assert (run["state"], words in run["problem"]) == ("failed", True)
    assert words in Path("run/log.txt").read_text()


def test_an_exception_in_an_observer_is_reported(tmp_path, monkeypatch):
    file = raising(tmp_path, "return good")
    listening = """

from gemkit import Observer


class Listening(Observer):
    'Falls over.'

    name = "listening"

    def listen(self, run_dir):
        return lambda event: 1 / 0


@hookimpl
def gemkit_observers():
    return [Listening]
"""
    file.write_text(file.read_text() + listening)
    gemkit = commands_in(tmp_path, monkeypatch)
    shown = gemkit("run", "--plugin", file, "--observer", "listening", *TINY)
    assert shown.exit_code == 1
    assert "gemkit: a plugin (given as a file) failed" in shown.stderr
    assert "ZeroDivisionError" in shown.stderr


def test_the_traceback_is_shown_on_request(tmp_path, monkeypatch):
    file = raising(tmp_path, "return wieghts")
    gemkit = commands_in(tmp_path, monkeypatch)
    monkeypatch.setenv("GEMKIT_TRACEBACK", "1")
    shown = gemkit("run", "--plugin", file, "--pruner", "faulty", *TINY)
    assert isinstance(shown.exception, NameError)
    assert "gemkit:" not in shown.stderr


def test_from_python_the_original_exception_is_raised(tmp_path):
    registry = load_plugins(files=[raising(tmp_path, "return wieghts")], only=())
    with pytest.raises(NameError, match="wieghts"):
        search(registry.recipe("faulty"), tiny_net(), tiny_data(), runtime=CPU)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_kit_finds_the_same_faults(fault, tmp_path, monkeypatch):
    body, _ = FAULTS[fault]
    file = tmp_path / "faulty.py"
    file.write_text(PLUGIN.format(body=indent(body, " " * 8)))
    checked = commands_in(tmp_path, monkeypatch)("check-plugin", file)
    assert checked.exit_code == 1, checked.stderr
    assert "BROKEN" in checked.stdout
    assert "smallest case" in checked.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["faulty.py"]
