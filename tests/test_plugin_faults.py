"""Scores that misbehave while they are used: told by name, and nobody else is harmed."""

from textwrap import indent

import pytest
from cli_runs import TINY, commands_in

PLUGIN = '''
import torch
from gemkit import MeasuredScores, hookimpl


class Faulty(MeasuredScores):
    """Something is wrong with it."""

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
