"""The folder of a run: names, locks, states, and files that are complete."""

import gc
import json
import os
import subprocess
import sys
import tomllib
import warnings
from datetime import datetime
from pathlib import Path

import pytest
import torch

from gemkit.core.atomic_io import read
from gemkit.core.errors import CheckpointError, OptionError, StorageError, TrainingError
from gemkit.core.events import Collapsed, EpochEnded, Froze, Noted, PhaseStarted, StepEnded
from gemkit.runs import directory as rundir
from gemkit.runs.differences import differences
from gemkit.runs.directory import RunDir
from gemkit.runs.metrics import Log, Metrics, last_line


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


def test_a_folder_that_cannot_be_created_is_an_error():
    Path("runs").touch()
    with pytest.raises(OptionError, match=r"cannot create the folder runs.*--out"):
        rundir.create(None, "mine")


def test_metrics_are_on_disk_after_every_event():
    file = rundir.create(None, "mine").metrics
    with Metrics(file) as write:
        write(PhaseStarted("search", 1, 2))
        write(StepEnded("search", 1))
        assert file.read_text() == ""
        write(EpochEnded("search", 1, 0.5, 0.75, 0.1, 0.01, 2.0))
        assert len(file.read_text().splitlines()) == 1
        write(Froze(2, 0.1, 10, 9, 100))
        write(Collapsed(2, ("conv1.weight",), "gone"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["epoch", "freeze", "collapse"]
    assert lines[0]["accuracy"] == 0.75
    assert lines[1]["kept"] == 9
    assert lines[2]["layers"] == ["conv1.weight"]


def test_an_error_is_the_last_line_of_the_metrics():
    folder = rundir.create(None, "mine")
    with pytest.raises(TrainingError), Metrics(folder.metrics):
        raise TrainingError("diverged")
    [line] = folder.metrics.read_text().splitlines()
    assert json.loads(line) == {"event": "error", "message": "diverged"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_the_last_line_is_found_behind_long_ones(tmp_path):
    file = tmp_path / "metrics.jsonl"
    epoch, error = {"event": "epoch", "epoch": 3}, {"event": "error", "message": "x" * 200_000}
    file.write_text("".join(f"{json.dumps(line)}\n" for line in (epoch, error)) + '{"cut')
    assert last_line(file) == error
    assert last_line(file, having="epoch") == epoch
    assert last_line(file, having="nothing") == {}


def test_metrics_are_closed_where_the_disk_is_too_full_for_the_error():
    write = Metrics(Path("metrics.jsonl"))
    with Path("/dev/full").open("ab") as full:
        os.dup2(full.fileno(), write._file.fileno())
    with pytest.raises(TrainingError), write:
        raise TrainingError("diverged")
    with warnings.catch_warnings(record=True, action="always") as caught:
        del write
        gc.collect()
    assert not caught


def test_metrics_written_after_a_checkpoint_are_removed():
    file = rundir.create(None, "mine").metrics
    with Metrics(file) as write:
        write(Froze(1, 0.5, 10, 9, 100))
        saved = write.state_dict()
        write(Froze(2, 0.1, 10, 9, 100))
        with file.open("a") as other:
            other.write('{"event": "epo')  # killed while it wrote
    with Metrics(file) as write:
        write.load_state_dict(saved)
        assert write.state_dict()["offset"] == saved["offset"]
        write(Froze(3, 0.1, 10, 9, 100))
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1, 3]


def test_metrics_that_were_lost_or_changed_are_restored_and_a_warning_says_so():
    file = rundir.create(None, "mine").metrics
    with Metrics(file) as write:
        write(Froze(1, 0.5, 10, 9, 100))
        write(Froze(2, 0.1, 10, 9, 100))
        saved = write.state_dict()
    sound = file.read_bytes()
    for damaged in (b"", sound[:40], sound.replace(b"0.5", b"0.6"), sound[:-1] + b"x"):
        file.write_bytes(damaged)
        heard: list[str] = []
        with Metrics(file, heard.append) as write:
            write.load_state_dict(saved)
        assert "was lost or changed after the run was saved; it is restored" in " ".join(heard)
        assert file.read_bytes() == sound
    with Metrics(file, pytest.fail) as write:  # sound: no warning
        write.load_state_dict(saved)


def test_an_older_checkpoint_has_only_the_length_of_the_metrics():
    file = rundir.create(None, "mine").metrics
    file.write_bytes(b'{"event": "freeze"}\n' * 3)
    with Metrics(file, pytest.fail) as write:
        write.load_state_dict({"offset": 40})
        write(Froze(3, 0.1, 10, 9, 100))
        assert write.state_dict()["offset"] == file.stat().st_size
    heard: list[str] = []
    with Metrics(file, heard.append) as write:
        write.load_state_dict({"offset": 10_000})
        write(Froze(4, 0.1, 10, 9, 100))
    assert "shorter than it was when the run was saved: the metrics until then are lost" in heard[0]
    assert json.loads(file.read_text())["step"] == 4


@pytest.mark.parametrize("forged", [[1, 2], torch.zeros(3), torch.zeros(4, dtype=torch.uint8)])
def test_forged_lines_of_metrics_are_refused(forged):
    with Metrics(Path("metrics.jsonl")) as write, pytest.raises(CheckpointError, match="3 bytes"):
        write.load_state_dict({"offset": 3, "lines": forged})


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("", {}),
        ('{"event": "epoch", "epoch": 1}\n{"event": "err', {"event": "epoch", "epoch": 1}),
        ("[1]\n", {}),
        ("\ud7ff\n", {}),
        ("[" * 100_000 + "\n", {}),
    ],
)
def test_the_last_complete_line_is_found(text, last):
    file = Path("metrics.jsonl")
    file.write_text(text)
    assert last_line(file) == last


def test_the_last_line_with_a_field_is_found_behind_others():
    file = Path("metrics.jsonl")
    file.write_text('{"event": "epoch", "epoch": 1}\n{"event": "freeze"}\n[2]\n')
    assert last_line(file) == {"event": "freeze"}
    assert last_line(file, having="epoch") == {"event": "epoch", "epoch": 1}


def test_the_log_has_a_line_for_each_epoch_freeze_and_warning():
    log = Log(Path("log.txt"), now=lambda: datetime(2026, 1, 2, 3, 4, 5))
    log(PhaseStarted("search", 3, 12))
    log(StepEnded("search", 1))
    log(EpochEnded("search", 1, 0.5, 0.75, 0.1, 0.01, 2.0))
    log(Froze(2, 0.1, 10, 9, 100))
    log(Noted("be careful"))
    assert Path("log.txt").read_text().splitlines() == [
        "2026-01-02 03:04:05  search: 3 epochs, 12 steps in all",
        "2026-01-02 03:04:05  search 1/3: loss 0.5000, accuracy 0.7500, density 0.1000, lr 0.01",
        "2026-01-02 03:04:05  freeze at step 2: 10 of 100 alive",
        "2026-01-02 03:04:05  warning: be careful",
    ]


# --- lock and state ------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from gemkit.runs.directory import RunDir
with RunDir(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_two_processes_cannot_work_on_one_run_and_a_dead_one_leaves_no_lock():
    folder = rundir.create(Path("run"), "")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, "run"], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    with holder:
        assert holder.stdout.readline() == "locked\n"
        assert folder.state() == "running"
        with (
            pytest.raises(OptionError, match=f"in use by another process .process {holder.pid}"),
            folder.locked(),
        ):
            raise AssertionError("two processes at once")
        holder.kill()
    with folder.locked():
        assert folder.state() == "running"
    assert folder.state() == "interrupted"


def test_incomplete_files_of_a_killed_process_are_removed_with_the_lock():
    folder = rundir.create(Path("run"), "")
    folder.checkpoints.mkdir()
    for place in (folder.path, folder.checkpoints):
        (place / ".gemkit-0123456789abcdef.tmp").write_bytes(b"half")
        (place / "precious.tmp").touch()
    with folder.locked():
        left = [path.name for path in folder.path.rglob("*tmp")]
        assert left == ["precious.tmp", "precious.tmp"]


def test_the_files_of_a_run_show_its_state():
    folder = rundir.create(Path("run"), "")
    folder.write_config({"density": 0.5})
    assert folder.is_run()
    assert folder.state() == "interrupted"
    folder.metrics.write_text('{"event": "error", "message": "x"}\n')
    assert folder.state() == "failed"
    folder.checkpoints.mkdir()
    folder.write_result({"accuracy": 0.5})
    assert folder.state() == "failed"
    folder.finish()
    assert folder.state() == "done"


def test_a_folder_with_a_run_may_be_used_again():
    folder = rundir.create(Path("run"), "")
    with folder.locked():
        pass
    (folder.path / ".gemkit-0123456789abcdef.tmp").touch()
    rundir.check_free(folder.path)  # killed before anything else was written
    (folder.path / "other").touch()
    with pytest.raises(OptionError, match="not empty"):
        rundir.check_free(folder.path)
    folder.write_config({})
    rundir.check_free(folder.path)


def test_differences_are_listed_by_name():
    there = {"seed": 0, "search": {"epochs": 3, "lr": 0.1}, "versions": {"torch": "2"}}
    here = {"seed": 0, "search": {"epochs": 4}, "versions": {"torch": "2"}, "density": 0.5}
    assert differences(there, here) == [
        "search.epochs is 3 there and 4 here",
        "search.lr is 0.1 there and not set here",
        "density is not set there and 0.5 here",
    ]
    assert differences(there, there) == []


def test_another_environment_is_noticed():
    folder = rundir.create(Path("run"), "")
    assert folder.add_environment({"threads": 1, "torch": "2"}) == []
    assert folder.add_environment({"threads": 2, "torch": "2"}) == ["threads 1 then, 2 now"]
    assert len(json.loads((folder.path / "environment.json").read_text())) == 2


@pytest.mark.parametrize(
    ("name", "content", "reading"),
    [
        ("config.toml", b"\xff", RunDir.config),
        ("config.toml", b"a = [" + b"[" * 100_000, RunDir.config),
        ("result.json", b"[" * 100_000, RunDir.result),
        ("result.json", b"[1]", RunDir.result),
        ("result.json", b"null", RunDir.result),
        ("result.json", b"{}", RunDir.result),
        ("result.json", b'{"seconds": 1e999}', RunDir.result),
    ],
)
def test_a_malformed_file_is_a_clear_error(name, content, reading):
    folder = rundir.create(Path("run"), "")
    (folder.path / name).write_bytes(content)
    with pytest.raises(OptionError, match=name):
        reading(folder)


def test_a_folder_without_a_run_says_how_to_start_one():
    with pytest.raises(OptionError, match=r"is no run.*gemkit run --out"):
        RunDir(Path("nowhere")).config()


def test_a_file_is_measured_before_it_is_read(tmp_path):
    (tmp_path / "big").write_bytes(b"x" * 101)
    assert read(tmp_path / "big", limit=101) == b"x" * 101
    with pytest.raises(OSError, match="larger than 100 bytes"):
        read(tmp_path / "big", limit=100)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="is a pipe, not a plain file"):
        read(tmp_path / "pipe")


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
    """Write in place, as no code that expects failures would."""
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
