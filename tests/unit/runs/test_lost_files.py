"""Runs that have lost files: they say so, and the way out that they name works."""

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from cli_runs import TINY, Gemkit, commands_in

from gemkit.core.errors import OptionError
from gemkit.pruning.guard import Guard
from gemkit.runs.checkfile import CheckFile
from gemkit.runs.directory import RunDir, check_free
from gemkit.tickets import file as ticket_file
from gemkit.training.checkpoint import CheckpointDir
from gemkit.training.checkpointer import DiskCheckpointer

RUN = ("run", "--pruner", "gem_miner", *TINY, "--checkpoint-minutes", "0")
TICKET, TRAINED = "ticket.safetensors", "finetuned.safetensors"
AGAIN = "warning: there is no checkpoint of what this run did, so it starts again"


@pytest.fixture
def gemkit(tmp_path, monkeypatch) -> Gemkit:
    """Return a function that runs a command in an empty folder."""
    return commands_in(tmp_path, monkeypatch)


def stop_at(monkeypatch, look: int) -> None:
    """Send a signal to a run at the n-th call of its checkpointer."""
    whole, looks = DiskCheckpointer.maybe_save, iter(range(1, 1000))

    def signal_and_save(self: DiskCheckpointer, *, epoch_ended: bool = False) -> None:
        if next(looks) == look:
            os.kill(os.getpid(), signal.SIGTERM)
        whole(self, epoch_ended=epoch_ended)

    monkeypatch.setattr(DiskCheckpointer, "maybe_save", signal_and_save)


def stop_checks(monkeypatch) -> None:
    """Send a signal to a run when it writes the first trial of its checks."""
    write, turns = CheckFile.write, iter(range(100))

    def stopped(self, margin):
        if next(turns) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return write(self, margin)

    monkeypatch.setattr(CheckFile, "write", stopped)


def tickets(folder: str) -> list[bytes]:
    return [Path(folder, name).read_bytes() for name in (TICKET, TRAINED)]


def refused(gemkit: Gemkit, *words: str) -> str:
    """Return the message of a command that ends with exit code 2."""
    shown = gemkit(*words)
    assert shown.exit_code == 2, shown.output
    assert not shown.stdout
    return shown.stderr.splitlines()[-1]


@pytest.mark.parametrize("lost", [(TICKET,), (TRAINED,), (TICKET, TRAINED)])
def test_a_finished_run_without_its_tickets_says_so_and_runs_again(gemkit, lost):
    assert gemkit(*RUN).exit_code == 0
    [run] = map(str, Path("runs").iterdir())
    whole = tickets(run)
    for name in lost:
        Path(run, name).unlink()
    are, them = ("is", "it") if len(lost) == 1 else ("are", "them")
    names = " and ".join(lost)
    way_out = f"put {them} back, or remove result.json to run all of it again"
    sentence = f"gemkit: {run} is finished, but {names} {are} lost or damaged; {way_out}"
    for words in (("resume", run), (*RUN, "--out", run), RUN):
        assert refused(gemkit, *words) == sentence
    readers = {"eval": TRAINED, "bench": TRAINED, "compact": TRAINED, "check": TICKET}
    for command in [name for name, file in readers.items() if file in lost]:
        assert refused(gemkit, command, run).endswith(
            f"{run} is a finished run that has lost {names}; {way_out}, with `gemkit resume {run}`"
        )
    Path(run, "result.json").unlink()
    again = gemkit("resume", run)
    assert again.exit_code == 0, again.stderr
    assert AGAIN in again.stderr
    assert tickets(run) == whole
    assert RunDir(Path(run)).state() == "done"


@pytest.mark.parametrize("name", [TICKET, TRAINED])
def test_a_finished_run_with_a_damaged_ticket_says_so_and_runs_again(gemkit, monkeypatch, name):
    assert gemkit(*RUN, "--out", "run").exit_code == 0
    whole, file = tickets("run"), Path("run", name)
    content = file.read_bytes()
    for damaged in (b"", content[:-1] + bytes([content[-1] ^ 1])):
        file.write_bytes(damaged)
        for words in (("resume", "run"), (*RUN, "--out", "run")):
            assert refused(gemkit, *words) == (
                f"gemkit: run is finished, but {name} is lost or damaged; "
                "put it back, or remove result.json to run all of it again"
            )
    with monkeypatch.context() as patch:
        patch.setenv("GEMKIT_MAX_GB", "0.000001")  # it may be sound, and is not read
        assert gemkit("resume", "run").exit_code == 0
    Path("run/result.json").unlink()
    assert gemkit("resume", "run").exit_code == 0
    assert tickets("run") == whole


def test_a_folder_with_a_result_that_is_no_run_has_lost_nothing(gemkit):
    """The stage of a study keeps no trained weights."""
    assert gemkit(*RUN, "--out", "run").exit_code == 0
    Path("stage").mkdir()
    for name in (TICKET, "result.json"):
        shutil.copy(Path("run", name), Path("stage", name))
    shown = gemkit("eval", "stage", "--device", "cpu")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stderr.startswith(f"note: taking stage/{TICKET}")


@pytest.mark.parametrize(
    ("lost", "way_out", "remove"),
    [
        (TICKET, "result.json and checkpoints/ to run all of it again", True),
        (TRAINED, "result.json to run again what came after its last checkpoint", False),
    ],
)
def test_a_run_that_loses_a_ticket_before_its_checks_says_so(
    gemkit, monkeypatch, lost, way_out, remove
):
    words = (*RUN, "--check", "shuffle", "--check-seeds", "1", "--out", "run")
    with monkeypatch.context() as patch:
        stop_checks(patch)
        assert gemkit(*words).exit_code == 143
    whole = tickets("run")
    Path("run", lost).unlink()
    assert refused(gemkit, "resume", "run").endswith(f"put it back, or remove {way_out}")
    Path("run/result.json").unlink()
    if remove:
        shutil.rmtree("run/checkpoints")
    again = gemkit("resume", "run")
    assert again.exit_code == 0, again.stderr
    assert (AGAIN in again.stderr) == remove
    assert tickets("run") == whole


def test_a_ticket_lost_during_fine_tuning_has_a_way_out(gemkit, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 14)
        assert gemkit(*RUN, "--out", "run").exit_code == 143
    file = Path("run", TICKET)
    own = file.read_bytes()
    file.unlink()
    shown = gemkit("resume", "run")
    assert shown.exit_code == 2
    assert (
        f"{file} does not exist, and fine-tuning began with it; put it back, or start in another "
        "folder"
    ) in shown.stderr
    assert "Ticket.save" not in shown.stderr
    file.write_bytes(own)
    assert gemkit("resume", "run").exit_code == 0


ITERATIVE = ("run", "--pruner", "imp_long_cold", *TINY, "--checkpoint-minutes", "0")


def levels(folder: str) -> dict[str, bytes]:
    """Return the tickets of all levels."""
    return {file.name: file.read_bytes() for file in Path(folder, "ladder").iterdir()}


def spoil(folder: str, how: str) -> str:
    """Lose or damage tickets of levels; return what a command says then, without the way out."""
    first, second, *_ = sorted(Path(folder, "ladder").iterdir())
    where = f"tickets in {folder}/ladder"
    if how == "lost":
        first.unlink()
        second.write_bytes(second.read_bytes()[:500])
        return f"of 6 {where}, 2 are lost or damaged ('{first.name}', '{second.name}'); put them"
    if how == "damaged":
        first.write_bytes(first.read_bytes()[:-1] + b"x")
        return f"{where}, 1 is lost or damaged ('{first.name}'); put it"
    shutil.rmtree(first.parent)
    return "lost or damaged ("


@pytest.mark.parametrize("how", ["lost", "damaged", "all"])
def test_a_finished_run_without_tickets_of_levels_says_so_and_runs_again(gemkit, how):
    """Its result is that of other files, so it is printed."""
    assert gemkit(*ITERATIVE).exit_code == 0
    [run] = map(str, Path("runs").iterdir())
    whole = levels(run)
    assert "lost" not in gemkit("resume", run).stderr
    words = spoil(run, how)
    for command in (("resume", run), (*ITERATIVE, "--out", run), ITERATIVE):
        shown = gemkit(*command)
        assert shown.exit_code == 0, shown.stderr
        [said] = [line for line in shown.stderr.splitlines() if line.startswith("warning: ")]
        assert words in said
        assert said.endswith(" back, or remove result.json to run all of it again")
    Path(run, "result.json").unlink()
    again = gemkit("resume", run)
    assert again.exit_code == 0, again.stderr
    assert levels(run) == whole
    assert "lost" not in gemkit("resume", run).stderr


def test_tickets_that_cannot_be_read_here_are_not_called_damaged(gemkit, monkeypatch):
    def resumed() -> None:
        shown = gemkit("resume", "run")
        assert (shown.exit_code, "damaged" in shown.stderr) == (0, False), shown.stderr

    assert gemkit(*ITERATIVE, "--out", "run").exit_code == 0
    for code in (errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE):

        def fails(path: Path, within: Path, code: int = code) -> None:
            raise OSError(code, os.strerror(code), str(path))

        with monkeypatch.context() as patch:
            patch.setattr("gemkit.core.tensor_file.open_plain", fails)
            resumed()
    monkeypatch.setenv("GEMKIT_MAX_GB", "0.00001")
    resumed()
    next(Path("run/ladder").iterdir()).unlink()
    assert "tickets in run/ladder, 1 is lost or damaged" in gemkit("resume", "run").stderr


def test_tickets_of_a_newer_gemkit_are_not_called_damaged(gemkit, monkeypatch):
    assert gemkit(*ITERATIVE, "--out", "run").exit_code == 0
    level, trained = next(Path("run/ladder").iterdir()), Path("run", TRAINED)
    for file in (level, trained):
        content = ticket_file.read(file)
        newer = content._replace(info={**content.info, "of a newer gemkit": 1})
        ticket_file.write(newer, file)
        assert "damaged" not in gemkit("resume", "run").stderr
        with monkeypatch.context() as patch:
            patch.setattr(ticket_file, "FORMAT", 2)
            ticket_file.write(newer, file)
        assert "damaged" not in gemkit("resume", "run").stderr
    for file in (level, trained):  # a mask without weights, and none at all
        mask = content.mask if file == level else {}
        ticket_file.write(content._replace(mask=mask, state={"odd": torch.ones(1)}), file)
        lines = gemkit("resume", "run").stderr.splitlines()
        assert [file.name in line for line in lines if "lost or damaged" in line] == [True]


@pytest.mark.parametrize("look", [30, 64], ids=["search", "finetune"])
def test_a_run_that_loses_tickets_of_levels_says_so_when_it_is_resumed(gemkit, monkeypatch, look):
    assert gemkit(*ITERATIVE, "--out", "whole").exit_code == 0
    with monkeypatch.context() as patch:
        stop_at(patch, look)
        assert gemkit(*ITERATIVE, "--out", "run").exit_code == 143
    assert Path("run", TICKET).exists() == (look == 64)
    words = spoil("run", "damaged")
    resumed = gemkit("resume", "run")
    assert resumed.exit_code == 0, resumed.stderr
    said = f"{words} back, or remove result.json when the run is done, to run all of it again"
    assert resumed.stderr.count(said) == 1
    assert said in Path("run/log.txt").read_text()
    assert tickets("run") == tickets("whole")
    assert "or remove result.json to run all of it again" in gemkit("resume", "run").stderr


def test_forged_names_of_levels_are_lost_levels(gemkit):
    assert gemkit(*ITERATIVE, "--out", "run").exit_code == 0
    file = Path("run/result.json")
    names = ["a\0b", "..", "", "x" * 300, "/etc/passwd", "\x1b[2J"]
    forged = json.loads(file.read_text()) | {"ladder": [{"ticket": name} for name in names]}
    file.write_text(json.dumps(forged))
    shown = gemkit("resume", "run")
    assert shown.exit_code == 0, shown.stderr
    assert "lost or damaged ('a\\x00b', " in shown.stderr
    assert "\x1b" not in shown.stderr


@pytest.mark.parametrize("look", [5, 14], ids=["search", "finetune"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_run_without_its_checkpoints_says_that_it_starts_again(gemkit, monkeypatch, look, empty):
    """In fine-tuning, too: without a checkpoint, it repeats the search."""
    assert gemkit(*RUN, "--out", "whole").exit_code == 0
    with monkeypatch.context() as patch:
        stop_at(patch, look)
        assert gemkit(*RUN, "--out", "run").exit_code == 143
    shutil.rmtree("run/checkpoints")
    if empty:
        Path("run/checkpoints").mkdir()
    again = gemkit("resume", "run")
    assert again.exit_code == 0, again.stderr
    assert again.stderr.count(AGAIN) == 1
    assert AGAIN in Path("run/log.txt").read_text()
    assert tickets("run") == tickets("whole")


def test_a_run_that_saved_nothing_starts_without_a_warning(gemkit, monkeypatch):
    def fails(self, freezes):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Guard, "check_start", fails)
        assert gemkit(*RUN, "--out", "run").exit_code != 0
    assert not CheckpointDir(Path("run/checkpoints")).files()
    again = gemkit("resume", "run")
    assert again.exit_code == 0, again.stderr
    assert "there is no checkpoint" not in again.stderr


def test_a_run_whose_checkpoints_are_damaged_starts_again_without_them(gemkit, monkeypatch):
    assert gemkit(*RUN, "--out", "whole").exit_code == 0
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        assert gemkit(*RUN, "--out", "run").exit_code == 143
    for file in CheckpointDir(Path("run/checkpoints")).files():
        file.write_bytes(file.read_bytes()[:1000])
    shown = gemkit("resume", "run")
    assert shown.exit_code == 2
    assert "in another folder, or remove run/checkpoints to start it again here" in shown.stderr
    shutil.rmtree("run/checkpoints")
    again = gemkit("resume", "run")
    assert (again.exit_code, AGAIN in again.stderr) == (0, True)
    assert tickets("run") == tickets("whole")


def test_a_run_that_has_lost_its_configuration_is_told_to_put_it_back(gemkit):
    assert gemkit(*RUN, "--out", "run").exit_code == 0
    file = Path("run/config.toml")
    own = file.read_text()
    file.unlink()
    words = "run has lost config.toml; put it back, or start another run in another folder"
    for command in (("resume", "run"), (*RUN, "--out", "run")):
        assert refused(gemkit, *command) == f"gemkit: {words}"
    file.write_text(own)
    assert gemkit("resume", "run").exit_code == 0


def test_an_unrelated_folder_has_lost_no_configuration(gemkit):
    Path("other").mkdir()
    Path("other/environment.json").write_text("{}")
    assert "other exists and is not empty" in refused(gemkit, *RUN, "--out", "other")
    assert "other is no run" in refused(gemkit, "resume", "other")
    for name in ("metrics.jsonl", "log.txt", "result.json"):
        Path("other", name).touch()
        assert "other has lost config.toml" in refused(gemkit, "resume", "other")
        Path("other", name).unlink()


@pytest.mark.parametrize("content", ["", "seed = 1\n", "not = [toml"])
def test_a_damaged_configuration_is_named_with_a_way_out(gemkit, content):
    Path("run").mkdir()
    Path("run/config.toml").write_text(content)
    shown = gemkit("resume", "run")
    assert shown.exit_code == 2
    assert shown.stderr.startswith("gemkit: run/config.toml")
    assert shown.stderr.endswith("put it back, or start another run\n")


@pytest.mark.parametrize("content", ["", "{}"])
@pytest.mark.parametrize("saved", [False, True])
def test_a_damaged_result_says_what_removing_it_repeats(content, saved, tmp_path):
    run = RunDir(tmp_path)
    Path(tmp_path, "result.json").write_text(content)
    if saved:
        run.checkpoints.mkdir()
    again = "resume the run" if saved else "run all of it again"
    with pytest.raises(OptionError, match=f"; put it back, or remove it to {again}$"):
        run.result()


def test_a_folder_that_was_killed_while_it_was_cleared_can_be_used(tmp_path, monkeypatch):
    run, left = RunDir(tmp_path), iter(range(2))
    run.write_config({})
    run.add_environment({})
    run.metrics.touch()
    whole = Path.unlink

    def killed(self: Path, *, missing_ok: bool) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        whole(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        run.clear()
    check_free(tmp_path)
