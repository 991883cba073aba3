"""A part that calls `gemkit.importance("name")` finds what the run around it finds."""

import sys
from importlib import util
from pathlib import Path

import pytest
from cli_runs import TINY, commands_in
from tiny import tiny_net

import gemkit
from gemkit import load_plugins
from gemkit.core.errors import UnknownNameError
from gemkit.plugins.current import current_registry, in_use
from gemkit.testing import contract

PLUGIN = '''
import gemkit
from gemkit import MeasuredScores, hookimpl


class Inner(MeasuredScores):
    """The size of a weight."""

    name = "inner"
    needs_signal = False

    def importance(self, probe):
        return {name: weight.abs() for name, weight in probe.weights.items()}


class Outer(MeasuredScores):
    """Scores of the same file, by name."""

    name = "outer"
    needs_signal = False

    def importance(self, probe):
        return gemkit.importance("inner", probe.model, probe.batches, alive=probe.alive,
                                 prune_frozen=True)


@hookimpl
def gemkit_scores():
    return [Inner, Outer]


@hookimpl
def gemkit_pruners():
    return {"outer": {"help": "By name", "scores": "outer", "allocation": "uniform"}}
'''


@pytest.fixture
def gemkit_in(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(PLUGIN)
    yield commands_in(tmp_path, monkeypatch)
    for name in [name for name in sys.modules if name.startswith("gemkit_file_mine")]:
        del sys.modules[name]


def unknown_outside():
    with pytest.raises(UnknownNameError, match="unknown scores 'inner'"):
        gemkit.importance("inner", tiny_net(), [])
    return current_registry() is None


def test_a_run_and_its_checks_find_plugin_files(gemkit_in):
    result = gemkit_in("run", "--plugin", "mine.py", "--pruner", "outer", *TINY, "--out", "RUN")
    assert result.exit_code == 0, result.stderr
    assert unknown_outside()
    words = ("--checks", "invert", "--seeds", "1", "--device", "cpu", "--finetune-epochs", "1")
    result = gemkit_in("check", "RUN", "--plugin", "mine.py", *words)
    assert result.exit_code == 0, result.stderr
    assert unknown_outside()


def test_the_contract_finds_plugin_files(gemkit_in):
    result = gemkit_in("check-plugin", "mine.py")
    assert result.exit_code == 0, result.stdout
    assert unknown_outside()


def test_a_module_under_contract_finds_its_own_parts(gemkit_in):
    spec = util.spec_from_file_location("mine_under_contract", Path("mine.py"))
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    test = contract(module)
    [mark] = test.pytestmark
    cases = [case.values for case in mark.args[1] if "Outer" in case.id]
    names = {"importance-is-finite-where-weights-are-alive", "it-finds-a-ticket"}
    tried = [one for one in cases if one[1].name in names]
    assert tried
    for case in tried:
        test(*case)
    assert unknown_outside()


def test_python_runs_find_the_registry_that_they_are_given(gemkit_in, tmp_path):
    registry = load_plugins(files=["mine.py"], only=())
    config = {"pruner": "outer", "model": {"name": "conv4", "width": 4}, "density": 0.3}
    config |= {"dataset": {"name": "fake", "samples": 60}, "runtime": {"device": "cpu"}}
    plans = {"search": {"epochs": 1, "batch_size": 16}, "finetune": {"epochs": 1}}
    assert gemkit.run(config | plans, tmp_path / "RUN", registry=registry).ticket
    assert unknown_outside()


def test_the_innermost_registry_counts():
    one, other = load_plugins(only=()), load_plugins(only=())
    assert current_registry() is None
    with in_use(one):
        with in_use(None):
            assert current_registry() is one
        with in_use(other):
            assert current_registry() is other
        assert current_registry() is one
    assert current_registry() is None
