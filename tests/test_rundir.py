"""Run directories are new, and their files whole."""

import json
import tomllib
from pathlib import Path

import pytest

from gemkit import rundir
from gemkit.errors import OptionError, TrainingError
from gemkit.events import Collapsed, EpochEnded, Froze, PhaseStarted, StepEnded
from gemkit.rundir import RunDir


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_names_are_numbered_where_they_are_taken():
    names = [rundir.create(None, "mine").path for _ in range(3)]
    assert names == [Path("runs/mine"), Path("runs/mine-2"), Path("runs/mine-3")]


def test_a_chosen_folder_may_be_new_or_empty_but_not_used():
    assert rundir.create(Path("a/b"), "ignored").path == Path("a/b")
    assert rundir.create(Path("a/b"), "ignored").path == Path("a/b")
    Path("a/b/file").touch()
    with pytest.raises(OptionError, match="exists and is not empty"):
        rundir.create(Path("a/b"), "ignored")
    with pytest.raises(OptionError, match="exists and is not a folder"):
        rundir.create(Path("a/b/file"), "ignored")


def test_a_folder_that_cannot_be_made_is_explained():
    Path("runs").touch()
    with pytest.raises(OptionError, match=r"cannot make the run directory runs.*--out"):
        rundir.create(None, "mine")


def test_metrics_are_on_disk_after_every_event():
    folder = rundir.create(None, "mine")
    file = folder.path / "metrics.jsonl"
    with folder.metrics() as tell:
        tell(PhaseStarted("search", 1, 2))
        tell(StepEnded("search", 1))
        assert file.read_text() == ""
        tell(EpochEnded("search", 1, 0.5, 0.75, 0.1, 0.01, 2.0))
        assert len(file.read_text().splitlines()) == 1
        tell(Froze(2, 0.1, 10, 9, 100))
        tell(Collapsed(2, ("conv1.weight",), "gone"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["epoch", "freeze", "collapse"]
    assert lines[0]["accuracy"] == 0.75
    assert lines[1]["kept"] == 9
    assert lines[2]["layers"] == ["conv1.weight"]


def test_an_error_is_the_last_line_of_the_metrics():
    folder = rundir.create(None, "mine")
    with pytest.raises(TrainingError), folder.metrics():
        raise TrainingError("diverged")
    [line] = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"event": "error", "message": "diverged"}


def test_config_and_result_read_back():
    folder = rundir.create(None, "mine")
    folder.write_config({"density": 0.05, "recipe": {"scores": {"name": "uniform"}}})
    folder.write_result({"accuracy": 0.5, "ticket": None})
    config = tomllib.loads((folder.path / "config.toml").read_text())
    assert config == {"density": 0.05, "recipe": {"scores": {"name": "uniform"}}}
    result = json.loads((folder.path / "result.json").read_text())
    assert result == {"accuracy": 0.5, "ticket": None}
    assert folder.contents() == ["config.toml", "result.json"]


def test_a_result_that_is_not_a_number_is_refused():
    folder = rundir.create(None, "mine")
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.write_result({"accuracy": float("nan")})
    assert folder.contents() == []


def write_plainly(path: Path, text: str) -> None:
    """Write as one would without thinking of failures."""
    with path.open("w") as file:
        file.write(text)


@pytest.mark.parametrize(("write", "survives"), [(rundir.write, True), (write_plainly, False)])
def test_a_failed_write_leaves_what_was_there(write, survives):
    file = Path("result.json")
    file.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write(file, "after \ud800")  # half a character cannot be encoded
    assert (file.read_text() == "before") == survives
    assert [path.name for path in Path().iterdir()] == ["result.json"]


def test_a_run_directory_names_its_tickets():
    assert RunDir(Path("x")).ticket == Path("x/ticket.safetensors")
    assert RunDir(Path("x")).finetuned == Path("x/finetuned.safetensors")
