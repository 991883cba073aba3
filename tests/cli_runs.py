"""Call the command line in tests: in this process, in a temporary folder, on tiny data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gemkit.cli import main

Gemkit = Callable[..., Result]

TINY = (
    *("--dataset", "fake", "-o", "dataset.samples=60", "-o", "model.width=4"),
    *("--epochs", "3", "--batch-size", "16", "--density", "0.3", "--device", "cpu"),
)

PLUGIN = '''
from pathlib import Path

from gemkit.core.errors import DataError
from gemkit import hookimpl
from gemkit import DatasetPart, MeasuredScores, Observer

print("a plugin that talks")


class Steady(MeasuredScores):
    """Importance by size, for tests."""

    name = "steady"

    def importance(self, probe):
        print("and talks")
        return {name: weight.abs() + 1 for name, weight in probe.weights.items()}


class Nowhere(DatasetPart):
    """A data set that reports its folder."""

    name = "nowhere"

    def load(self, folder):
        raise DataError(f"looked into {folder}")


class Tally(Observer):
    """Write the names of events into the run's folder."""

    name = "tally"

    def listen(self, run_dir):
        def record(event):
            with (Path(run_dir) / "tally").open("a") as file:
                file.write(type(event).__name__ + "\\n")

        return record


@hookimpl
def gemkit_scores():
    return [Steady]


@hookimpl
def gemkit_datasets():
    return [Nowhere]


@hookimpl
def gemkit_observers():
    return [Tally]


@hookimpl
def gemkit_pruners():
    return {"steady": {"help": "Steady, for tests", "scores": "steady", "allocation": "uniform"}}
'''


def commands_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Gemkit:
    """Return a function that runs a command in a folder, without installed plugins."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GEMKIT_PLUGINS", "")

    def run(*words: object) -> Result:
        return CliRunner().invoke(main, [str(word) for word in words])

    return run


def answer(result: Result) -> dict[str, Any]:
    """Return the one JSON object on stdout; NaN and infinity are not JSON."""
    assert result.exit_code == 0, result.stderr
    parsed = json.loads(result.stdout, parse_constant=_refuse)
    assert isinstance(parsed, dict)
    return parsed


def _refuse(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")
