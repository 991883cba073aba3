"""`gemkit resume`, `gemkit runs`, and `gemkit run` into a folder that holds a run."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_runs import PLUGIN, TINY, Gemkit, answer, commands_in

from gemkit.cli.reporting import Report
from gemkit.core.errors import SignalError
from gemkit.pruning.guard import Guard
from gemkit.runs.checkfile import CheckFile
from gemkit.runs.directory import RunDir
from gemkit.runs.resolved import ResolvedRun
from gemkit.runs.setup import Setup
from gemkit.runs.signals import deferred
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpoint import CheckpointDir
from gemkit.training.checkpointer import DiskCheckpointer

TICKETS = ("ticket.safetensors", "finetuned.safetensors")


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    """Return a function that runs a command in an empty folder."""
    return commands_in(tmp_path, monkeypatch)


@pytest.fixture
def signalled(monkeypatch):
    """Send a signal to the run at the n-th call of its checkpointer."""

    def at(look: int, number: signal.Signals = signal.SIGTERM) -> None:
        whole, looks = DiskCheckpointer.maybe_save, iter(range(1, 1000))

        def signal_and_look(self: DiskCheckpointer, *, epoch_ended: bool = False) -> None:
            if next(looks) == look:
                os.kill(os.getpid(), number)
            whole(self, epoch_ended=epoch_ended)

        monkeypatch.setattr(DiskCheckpointer, "maybe_save", signal_and_look)

    return at


def files(folder: str) -> list[bytes]:
    return [Path(folder, name).read_bytes() for name in TICKETS]


def metrics(folder: str) -> list[dict]:
    lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.mark.parametrize(("rank", "times"), [(None, 1), ("0", 1), ("1", 0)])
def test_only_the_first_process_reports_a_signal(rank, times, monkeypatch, capfd):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    with deferred(Report().stopping) as request:
        os.kill(os.getpid(), signal.SIGTERM)
    assert request.signal == signal.SIGTERM
    assert capfd.readouterr().err.count("a second signal stops at once") == times


def test_a_signal_is_recorded_if_stderr_is_closed(monkeypatch):
    monkeypatch.setattr(os, "write", broken_pipe)
    with deferred(Report().stopping) as request:
        os.kill(os.getpid(), signal.SIGINT)
    assert request.signal == signal.SIGINT


def broken_pipe(*_: object) -> None:
    raise BrokenPipeError


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)],
    ids=["hup", "int", "term"],
)
@pytest.mark.parametrize("look", [2, 14], ids=["search", "finetune"])
@pytest.mark.usefixtures("not_under_nohup")
def test_a_signal_saves_the_run_and_resuming_gives_the_same_files(
    gemkit, signalled, number, code, look, capfd
):
    whole = answer(gemkit("run", *TINY, "--out", "whole", "--json"))
    signalled(look, number)
    stopped = gemkit("run", *TINY, "--out", "run")
    assert stopped.exit_code == code
    assert stopped.stderr.endswith(
        f"gemkit: stopped by {number.name}; resume with: gemkit resume run\n"
    )
    assert "Traceback" not in stopped.stderr
    assert capfd.readouterr().err.count("a second signal stops at once") == 1
    [listed] = answer(gemkit("runs", "run", "--json"))["runs"]
    assert listed["state"] == "interrupted"
    resumed = answer(gemkit("resume", "run", "--json"))
    own = {"seconds", "seconds_search", "ticket", "finetuned", "run_dir"}
    assert {name: resumed[name] for name in resumed.keys() - own} == {
        name: whole[name] for name in whole.keys() - own
    }
    assert files("run") == files("whole")
    assert metrics("run") == metrics("whole")
    assert not RunDir(Path("run")).checkpoints.exists()


def test_running_again_into_the_same_folder_resumes(gemkit, signalled):
    signalled(5)
    words = ("run", "--pruner", "imp_long_cold", *TINY, "--out", "run")
    assert gemkit(*words).exit_code == 143
    again = gemkit(*words, "--json")
    assert "note: run holds this run; resuming it" in again.stderr
    result = answer(again)
    whole = answer(gemkit(*words[:-1], "whole", "--json"))
    assert files("run") == files("whole")
    assert [level["accuracy"] for level in result["ladder"]] == [
        level["accuracy"] for level in whole["ladder"]
    ]


def no_signal(self, freezes):
    raise SignalError("no signal at all")


def test_an_error_that_saved_nothing_does_not_block_its_folder(gemkit, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Guard, "check_start", no_signal)
        assert gemkit("run", *TINY, "--seed", "1", "--out", "run").exit_code == 2
    again = gemkit("run", *TINY, "--out", "run", "--json")
    assert "note: run held another run, which had saved nothing" in again.stderr
    assert answer(again)["run_dir"] == "run"
    assert not any(line["event"] == "error" for line in metrics("run"))


def test_another_run_with_a_checkpoint_is_refused(gemkit, signalled):
    signalled(5)
    assert gemkit("run", *TINY, "--out", "run").exit_code == 143
    other = gemkit("run", *TINY, "--seed", "7", "--out", "run")
    assert other.exit_code == 2
    assert "seed is 0 there and 7 here" in other.stderr


def test_a_run_that_was_moved_finds_its_levels(gemkit, signalled):
    signalled(14)
    assert gemkit("run", "--pruner", "imp_long_cold", *TINY, "--out", "run").exit_code == 143
    assert list(Path("run/ladder").iterdir())
    Path("run").rename("moved")
    result = answer(gemkit("resume", "moved", "--json"))
    found = [level["ticket"] for level in result["ladder"]]
    assert found == sorted(map(str, Path("moved/ladder").iterdir()))
    assert [Ticket.load(file).density for file in found] == [
        level["density"] for level in result["ladder"]
    ]


def test_a_finished_run_is_not_repeated(gemkit):
    first = answer(gemkit("run", *TINY, "--out", "run", "--json"))
    before = {path: path.stat().st_mtime_ns for path in Path("run").glob("*.safetensors")}
    for words in (("run", *TINY, "--out", "run"), ("resume", "run")):
        assert answer(gemkit(*words, "--json")) == first
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("lean", ["true", "false"])
def test_a_setting_that_no_longer_exists_is_ignored_in_old_files(lean, gemkit):
    first = answer(gemkit("run", "--pruner", "random", *TINY, "--out", "run", "--json"))
    config = Path("run/config.toml")
    config.write_text(config.read_text().replace("[runtime]", f"[runtime]\nlean = {lean}"))
    for words in (("resume", "run"), ("run", "--pruner", "random", *TINY, "--out", "run")):
        assert answer(gemkit(*words, "--json")) == first


def test_a_run_interrupted_before_a_setting_was_removed_is_resumed(gemkit, signalled, monkeypatch):
    words = ("run", "--pruner", "gem_miner", *TINY, "--out")
    assert gemkit(*words, "whole").exit_code == 0
    before = ResolvedRun.to_data

    def with_lean(run: ResolvedRun) -> dict[str, Any]:
        data = before(run)
        return data | {"runtime": data["runtime"] | {"lean": False}}

    with monkeypatch.context() as then:
        then.setattr(ResolvedRun, "to_data", with_lean)
        signalled(5)
        assert gemkit(*words, "run").exit_code == 143
    assert "lean = false" in Path("run/config.toml").read_text()
    resumed = gemkit("resume", "run")
    assert resumed.exit_code == 0, resumed.stderr
    assert files("run") == files("whole")
    assert "resumed in search" in Path("run/log.txt").read_text()


def test_another_configuration_is_refused_and_its_differences_are_listed(gemkit):
    gemkit("run", *TINY, "--out", "run")
    before = {path: path.read_bytes() for path in Path("run").iterdir()}
    shown = gemkit("run", *TINY, "--seed", "7", "-o", "regularizer.weight=1e-3", "--out", "run")
    assert shown.exit_code == 2
    assert "run holds another run, and nothing was changed there" in shown.stderr
    assert "seed is 0 there and 7 here" in shown.stderr
    assert "recipe.regularizer.weight is 0.0001 there and 0.001 here" in shown.stderr
    assert {path: path.read_bytes() for path in Path("run").iterdir()} == before


def test_a_configuration_that_was_edited_no_longer_fits_its_checkpoints(gemkit, signalled):
    signalled(5)
    gemkit("run", *TINY, "--out", "run")
    config = Path("run/config.toml")
    config.write_text(config.read_text().replace("seed = 0", "seed = 1", 1))  # the run's
    shown = gemkit("resume", "run")
    assert shown.exit_code == 2
    assert "belong to another configuration" in shown.stderr
    assert "may come from an older gemkit; start again in another folder" in shown.stderr


def test_other_versions_are_another_configuration(gemkit, signalled):
    signalled(5)
    gemkit("run", *TINY, "--out", "run")
    config = Path("run/config.toml")
    text = config.read_text()
    [torch] = [line for line in text.splitlines() if line.startswith("torch = ")]
    config.write_text(text.replace(torch, 'torch = "1.0"'))
    shown = gemkit("resume", "run")
    assert shown.exit_code == 2
    assert "versions.torch is '1.0' there" in shown.stderr


def test_user_code_runs_only_if_it_is_given_again(gemkit, signalled):
    Path("mine.py").write_text(PLUGIN)
    Path("nets.py").write_text(
        "from gemkit.testing.tiny import fresh_net\n"
        "def build(shape, classes):\n    return fresh_net(classes, shape[0])\n"
    )
    small = [word for word in TINY if word not in {"-o", "model.width=4"}]
    words = ("--pruner", "steady", "--plugin", "mine.py", "--model", "nets:build")
    small = ["-o", "dataset.samples=60", *[word for word in small if "samples" not in word]]
    signalled(3)
    stopped = gemkit("run", *words, *small, "--out", "run")
    assert stopped.exit_code == 143, stopped.stderr
    again = "gemkit resume run --plugin mine.py --model nets:build"
    assert f"resume with: {again}\n" in stopped.stderr
    shown = gemkit("resume", "run")
    assert (shown.exit_code, "give --model nets:build" in shown.stderr) == (2, True)
    shown = gemkit("resume", "run", "--model", "nets:build")
    assert shown.exit_code == 2
    assert "unknown scores 'steady'" in shown.stderr
    assert "was started with --plugin mine.py; a file alone runs no code" in shown.stderr
    assert "talks" not in shown.output
    shown = gemkit(*again.split()[1:], "--json")
    assert shown.exit_code == 0, shown.stderr
    Path("mine.py").write_text(PLUGIN + "# changed\n")
    shown = gemkit(*again.split()[1:])
    assert "versions.mine.py is 'sha256:" in shown.stderr


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(gemkit, signalled):
    whole = answer(gemkit("run", *TINY, "--out", "whole", "--json"))
    signalled(10)
    gemkit("run", *TINY, "--out", "run", "--checkpoint-minutes", "0")
    newest, before = CheckpointDir(Path("run/checkpoints")).files()
    newest.write_bytes(newest.read_bytes()[:1000])
    shown = gemkit("resume", "run", "--json")
    assert f"warning: checkpoint {newest} is truncated, damaged" in shown.stderr
    assert answer(shown)["accuracy_after"] == whole["accuracy_after"]
    assert files("run") == files("whole")
    assert before.exists() is False


def stop_checks(monkeypatch) -> None:
    """Let checks receive a signal before they write their third trial."""
    write, turns = CheckFile.write, iter(range(100))

    def stopped(self, margin):
        if next(turns) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return write(self, margin)

    monkeypatch.setattr(CheckFile, "write", stopped)


def test_the_checks_of_a_run_are_resumed(gemkit, monkeypatch):
    words = ("run", "--pruner", "random", *TINY, "--check", "shuffle", "--check-seeds", "2")
    whole = answer(gemkit(*words, "--out", "whole", "--json"))
    stop_checks(monkeypatch)
    stopped = gemkit(*words, "--out", "run")
    assert stopped.exit_code == 143
    assert "resume with: gemkit resume run" in stopped.stderr
    assert RunDir(Path("run")).state() == "interrupted"
    saved = json.loads(Path("run/checks.json").read_text())["trials"]
    again = gemkit("resume", "run", "--json")
    resumed = answer(again)
    assert resumed["checks"]["trials"] == whole["checks"]["trials"]
    made = re.findall(r"^\[\d/\d\] (seed \d, \w+)", again.stderr, re.MULTILINE)
    done = {f"seed {trial['seed']}, {trial['check']}" for trial in saved}
    assert len(done) == 3, done  # this run's ticket, and the two that were made
    every = [f"seed {trial['seed']}, {trial['check']}" for trial in whole["checks"]["trials"]]
    assert made == [trial for trial in every if trial not in done]
    assert Path("run/checks.json").read_bytes() == Path("whole/checks.json").read_bytes()


@pytest.mark.parametrize("checks", [("--check", "shuffle", "--check-seeds", "1"), ()])
def test_a_signal_in_the_last_measurement_stops_before_the_checks(gemkit, monkeypatch, checks):
    measure, turns = Setup.measure, iter(range(1, 100))

    def signalled_at_the_end(self, ticket):
        if next(turns) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return measure(self, ticket)

    monkeypatch.setattr(Setup, "measure", signalled_at_the_end)
    ended = gemkit("run", "--pruner", "random", *TINY, *checks, "--out", "run")
    run = RunDir(Path("run"))
    if not checks:
        assert (ended.exit_code, run.state()) == (130, "done")
        assert "stopped by SIGINT; the run is done: `gemkit resume run` prints" in ended.stderr
        assert answer(gemkit("resume", "run", "--json"))["run_dir"] == "run"
        return
    assert (ended.exit_code, run.state()) == (130, "interrupted")
    assert "stopped by SIGINT; resume with: gemkit resume run" in ended.stderr
    assert not Path("run/checks.json").exists()
    assert len(answer(gemkit("resume", "run", "--json"))["checks"]["trials"]) == 2
    assert run.state() == "done"


def test_runs_are_listed_with_state_pruner_density_and_accuracy(gemkit, signalled):
    assert gemkit("runs").exit_code == 2
    done = answer(gemkit("run", "--pruner", "random", *TINY, "--json"))
    gemkit("run", "--epochs", "3", *TINY, "-o", "regularizer.weight=0.5", "--seed", "1")
    signalled(5)
    gemkit("run", *TINY, "--seed", "2")
    Path("runs/broken").mkdir()
    Path("runs/broken/config.toml").write_text("[")
    Path("runs/other").mkdir()
    listed = answer(gemkit("runs", "--json"))["runs"]
    states = {Path(run["run"]).name: run["state"] for run in listed}
    assert states == {
        "broken": "unreadable",
        "gem_miner-conv4-fake-d0.3-s1": "failed",
        "gem_miner-conv4-fake-d0.3-s2": "interrupted",
        "random-conv4-fake-d0.3-s0": "done",
    }
    finished = listed[-1]
    assert finished["pruner"] == "random"
    assert finished["density"] == done["density"]
    assert finished["accuracy_after"] == done["accuracy_after"]
    failed = listed[1]
    assert "collapse" in failed["problem"]
    shown = gemkit("runs")
    assert shown.exit_code == 0
    assert "random-conv4-fake-d0.3-s0     done         random" in shown.stdout


def test_a_new_run_notes_an_interrupted_one_of_the_same_name(gemkit, signalled):
    signalled(5)
    gemkit("run", *TINY)
    shown = gemkit("run", *TINY)
    assert "note: runs/gem_miner-conv4-fake-d0.3-s0 was interrupted" in shown.stderr
    assert "`gemkit resume runs/gem_miner-conv4-fake-d0.3-s0` would resume" in shown.stderr
    gemkit("resume", "runs/gem_miner-conv4-fake-d0.3-s0")
    assert "was interrupted" not in gemkit("run", *TINY).stderr


def test_the_same_command_resumes_interrupted_checks(gemkit, monkeypatch):
    gemkit("run", "--pruner", "random", *TINY, "--out", "run")
    words = ("check", "run", "--checks", "shuffle", "--seeds", "2")
    gemkit(*words, "--out", "whole")
    stop_checks(monkeypatch)
    stopped = gemkit(*words)
    assert stopped.exit_code == 143
    assert "stopped by SIGTERM; all finished results are in checks.json" in stopped.stderr
    assert gemkit(*words).exit_code == 0
    assert Path("run/checks.json").read_bytes() == Path("whole/checks.json").read_bytes()
    with RunDir(Path("run")).locked():
        assert "in use by another process" in gemkit(*words).stderr


def test_a_folder_without_a_run_cannot_be_resumed(gemkit):
    shown = gemkit("resume", "nowhere")
    assert shown.exit_code == 2
    assert "nowhere is no run" in shown.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("density = 0.3", "density = 3"), "density = 3: should be less than or equal to 1"),
        (("seed = 0", 'seed = "0"'), "seed = '0': should be a valid integer"),
        (('name = "conv4"', 'name = "conv5"'), "unknown model 'conv5'"),
        (("epochs = 3", "epochs = -3"), "finetune.epochs = -3"),
        (("[runtime]", "[runtine]"), "runtine does not exist"),
    ],
)
def test_a_configuration_is_validated(gemkit, change, words):
    gemkit("run", "--pruner", "random", *TINY, "--out", "run")
    config = Path("run/config.toml")
    config.write_text(config.read_text().replace(*change, 1))
    shown = gemkit("resume", "run")
    assert shown.exit_code == 2
    assert words in shown.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "result.density_target must be given"),
        ({"ticket": None}, "result.ticket = None: should be a valid string"),
        ({"seed": "a"}, "result.seed = 'a': should be a valid integer"),
        ({"model": 3}, "result.model = 3: should be an object"),
        ({"model": {"custom": 3}}, "result.model.custom = 3: should be a valid string"),
        ({"alive": 1, "prunable": 0}, "result.prunable = 0: should be greater than 0"),
        ({"density": 10**400}, "result.density = "),
        ({"recipe": float("nan")}, "result.json cannot be read"),
    ],
)
def test_a_result_is_validated(gemkit, change, words):
    gemkit("run", "--pruner", "random", *TINY, "--out", "run")
    file = Path("run/result.json")
    file.write_text(json.dumps({} if change is None else json.loads(file.read_text()) | change))
    shown = gemkit("resume", "run", "--json")
    assert shown.exit_code == 2, shown.output
    assert words in shown.stderr
    [listed] = answer(gemkit("runs", "run", "--json"))["runs"]
    assert listed["state"] == "unreadable"


def test_two_runs_at_once_in_one_folder_are_refused(gemkit):
    """A fresh process each, as on two terminals."""
    gemkit("run", "--pruner", "random", *TINY, "--out", "run")
    code = "from gemkit.cli import main; main()"
    with RunDir(Path("run")).locked():
        shown = subprocess.run(
            [sys.executable, "-c", code, "resume", "run"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert shown.returncode == 2
    assert "run is in use by another process" in shown.stderr


def test_a_ticket_that_vanished_is_an_error(gemkit, signalled):
    signalled(14)
    assert gemkit("run", *TINY, "--out", "run").exit_code == 143
    Path("run/ticket.safetensors").unlink()
    shown = gemkit("resume", "run")
    assert shown.exit_code == 2
    assert "ticket.safetensors does not exist" in shown.stderr


def test_time_adds_up_over_processes(gemkit, signalled, monkeypatch):
    signalled(14)
    gemkit("run", *TINY, "--out", "run")
    before = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: before() + 1000)
    result = answer(gemkit("resume", "run", "--json"))
    assert 0 < result["seconds_search"] < result["seconds"] < 1000
    assert Ticket.load("run/ticket.safetensors").info.stage == "found"
