"""Files that commands write: by one process at a time, and refused before the work for them."""

import errno
import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from cli_runs import TINY, answer, commands_in

from gemkit.core.errors import OptionError
from gemkit.core.events import EpochEnded, PhaseStarted
from gemkit.runs.locks import reserved
from gemkit.tickets.ticket import Ticket

RUN = ("run", "--pruner", "snip", *TINY, "--finetune-epochs", "2", "--out")
CHECK = ("check", "ticket.safetensors", "--seeds", "1", "--finetune-epochs", "1", "--out", "out")
TUNE = ("finetune", "ticket.safetensors", "--epochs", "1", "--batch-size", "16", "--device", "cpu")
STEP = "gemkit.training.trainer.Trainer.step"


@pytest.fixture(scope="module")
def ticket(tmp_path_factory):
    """Return the file of a ticket."""
    folder = tmp_path_factory.mktemp("targets")
    with pytest.MonkeyPatch.context() as patch:
        assert commands_in(folder, patch)(*RUN, "run").exit_code == 0
    return folder / "run" / "ticket.safetensors"


@pytest.fixture
def command(tmp_path, monkeypatch, ticket):
    shutil.copy(ticket, tmp_path)
    monkeypatch.setattr("gemkit.runs.locks._PATIENCE", 1)
    return commands_in(tmp_path, monkeypatch)


def names() -> list[str]:
    """List the files of the current folder."""
    return sorted(path.name for path in Path().iterdir())


def meanwhile(monkeypatch, act) -> None:
    """Do something in the first step that is trained from now on."""
    from gemkit.training.trainer import Trainer

    step = Trainer.step

    def first(*values, **others):
        monkeypatch.setattr(STEP, step)
        act()
        return step(*values, **others)

    monkeypatch.setattr(STEP, first)


# --- two at once ---------------------------------------------------------------------------------


def test_two_checks_at_once_lose_no_result(command, monkeypatch):
    second = []
    meanwhile(monkeypatch, lambda: second.append(command(*CHECK, "--checks", "reinit")))
    assert command(*CHECK, "--checks", "shuffle").exit_code == 0
    assert second[0].exit_code == 2
    assert f"out/checks.json is in use by another process (process {os.getpid()}); wait for it" in (
        second[0].stderr
    )
    assert command(*CHECK, "--checks", "reinit").exit_code == 0
    trials = json.loads(Path("out/checks.json").read_text())["trials"]
    assert {one["check"] for one in trials} == {"ticket", "shuffle", "reinit"}
    assert not [path.name for path in Path("out").iterdir() if path.name.endswith(".lock")]


def test_two_fine_tunings_do_not_write_one_file(command, monkeypatch):
    second = []
    meanwhile(monkeypatch, lambda: second.append(command(*TUNE, "--seed", "2", "--force")))
    first = answer(command(*TUNE, "--seed", "1", "--json"))
    assert second[0].exit_code == 2
    assert "ticket-finetuned.safetensors is in use by another process" in second[0].stderr
    assert Ticket.load(first["ticket"]).info.stage == "finetuned"
    late = command(*TUNE, "--seed", "2")
    assert late.exit_code == 2
    assert "exists; overwrite it with --force" in late.stderr
    assert names() == ["ticket-finetuned.safetensors", "ticket.safetensors"]


def test_a_file_that_appears_before_the_lock_is_held_is_not_overwritten(command, monkeypatch):
    def late(target):
        Path(target).write_text("of another process")
        return reserved(target)

    monkeypatch.setattr("gemkit.runs.locks.reserved", late)
    shown = command(*TUNE)
    assert shown.exit_code == 2
    assert "exists; overwrite it with --force" in shown.stderr
    assert Path("ticket-finetuned.safetensors").read_text() == "of another process"


def test_two_files_in_one_folder_are_written_at_once(command, monkeypatch):
    second = []
    meanwhile(monkeypatch, lambda: second.append(command(*TUNE, "--out", "b.safetensors")))
    assert command(*TUNE, "--out", "a.safetensors").exit_code == 0
    assert second[0].exit_code == 0
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()


def test_a_lock_that_its_holder_removed_is_taken_again(tmp_path, monkeypatch):
    """Another process waits for a file that is removed when it gets it."""
    from gemkit.runs import locks

    target, held = tmp_path / "a", []
    hold = locks.hold

    def removed_first(file, what):
        hold(file, what)
        if not held:
            Path(file.name).unlink()
        held.append(file.fileno())

    monkeypatch.setattr(locks, "hold", removed_first)
    with reserved(target):
        monkeypatch.setattr(locks, "hold", hold)
        monkeypatch.setattr(locks, "_PATIENCE", 1)
        with pytest.raises(OptionError, match="in use"), reserved(target):
            raise AssertionError("two at once")
    assert len(held) == 2
    assert list(tmp_path.iterdir()) == []


# --- a run whose folder is removed ---------------------------------------------------------------


def wholly(folder: Path) -> None:
    shutil.rmtree(folder)


def partly(folder: Path) -> None:
    for name in (".lock", "config.toml", "metrics.jsonl"):
        (folder / name).unlink()


def replaced(folder: Path) -> None:
    wholly(folder)
    folder.mkdir()
    (folder / ".lock").touch()


@pytest.mark.parametrize("event", [PhaseStarted, EpochEnded])
@pytest.mark.parametrize("remove", [wholly, partly, replaced])
def test_a_run_whose_folder_is_removed_fails_and_does_not_make_it_again(
    command, monkeypatch, event, remove
):
    """Once it made the folder again, without its configuration, and ended with exit code 0."""

    def listen(log, now):
        if isinstance(now, event) and (log.path.parent / "config.toml").exists():
            remove(log.path.parent)

    monkeypatch.setattr("gemkit.runs.metrics.Log.__call__", listen)
    shown = command(*RUN, "run")
    assert shown.exit_code == 2, shown.output
    assert isinstance(shown.exception, SystemExit), "a traceback"
    assert "run was removed or replaced while this process worked in it" in shown.stderr
    assert "resume" not in shown.stderr
    assert Path("run").exists() == (remove is not wholly)
    assert not Path("run/result.json").exists()


def test_a_lock_that_is_removed_by_hand_fails_no_run(command, monkeypatch):
    def listen(log, now):
        (log.path.parent / ".lock").unlink(missing_ok=True)

    monkeypatch.setattr("gemkit.runs.metrics.Log.__call__", listen)
    assert command(*RUN, "run").exit_code == 0


# --- what cannot be written ----------------------------------------------------------------------


def lock(monkeypatch, name: str) -> None:
    """Let nobody write to a file, not even root."""
    original = os.open

    def opened(path, flags, *arguments, **settings):
        if os.fspath(path) == name and flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return original(path, flags, *arguments, **settings)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((*TUNE, "--out", "/proc/x.safetensors"), "cannot write /proc/x.safetensors: "),
        ((*TUNE, "--out", "x" * 300), "cannot write x"),
        ((*TUNE, "--out", "other", "--force"), "ticket-finetuned.safetensors is a folder"),
        ((*TUNE, "--out", "pipe"), "pipe is a pipe, not a plain file; choose another --out"),
        (
            (*TUNE, "--out", "pipe", "--force"),
            "pipe is a pipe, not a plain file; choose another --out",
        ),
        (
            (*TUNE, "--out", "link", "--force"),
            "link is a pipe, not a plain file; choose another --out",
        ),
        (
            (*TUNE, "--out", "/dev/null", "--force"),
            "/dev/null is a device, not a plain file; choose another --out",
        ),
        (
            ("compact", "ticket.safetensors", "--out", "pipe", "--force"),
            "pipe is a pipe, not a plain file; choose another --out",
        ),
        (
            (*CHECK, "--out", "checks", "--force"),
            "checks.json is a pipe, not a plain file; choose another --out",
        ),
        ((*CHECK, "--out", "run", "--force"), "run/checks.json is a folder, not a plain file"),
        (("compact", "ticket.safetensors", "--out", "/proc/x"), "cannot write /proc/x: "),
        ((*CHECK, "--out", "/proc/x"), "cannot create the folder /proc/x: "),
        ((*CHECK, "--out", "/proc"), "cannot write /proc/checks.json: "),
        ((*RUN, "/proc/x"), "cannot create the folder /proc/x: "),
        (("report", ".", "--out", "/proc/x"), "cannot write to /proc/x: "),
        (
            ("reproduce", "fig2-lambda", "--try", "--figures", "/proc/x"),
            "cannot write to /proc/x: ",
        ),
        (
            ("reproduce", "fig2-lambda", "--try", "--ledger", "/proc/x"),
            "cannot write results to /proc/x: ",
        ),
        (("reproduce", "fig2-lambda", "--page", "page.md"), "page page.md cannot be written: "),
    ],
)
def test_a_target_that_cannot_be_written_is_refused_before_the_work(
    command, monkeypatch, words, what
):
    def work(*_: object, **__: object) -> None:
        raise AssertionError("it works first")

    for place in (
        *(STEP, "gemkit.compaction.compact_network.analyze", "gemkit.cli.report._records"),
        *("gemkit.study.store.Ledger._complete", "gemkit.cli.reproduce._check_data"),
    ):
        monkeypatch.setattr(place, work)
    Path("page.md").write_text("<!-- results: fig2-lambda -->\n<!-- end of results -->\n")
    lock(monkeypatch, "page.md")
    Path("other/ticket-finetuned.safetensors").mkdir(parents=True)
    Path("checks").mkdir()
    Path("run/checks.json").mkdir(parents=True)
    Path("run/config.toml").touch()
    for pipe in ("pipe", "checks/checks.json"):
        os.mkfifo(pipe)
    Path("link").symlink_to("pipe")
    shown = command(*words)
    assert shown.exit_code == 2, (shown.stderr, shown.exception)
    assert what in shown.stderr
    assert re.search("--(out|figures|page)|name another file", shown.stderr)
    assert "--force" not in shown.stderr
    assert Path("pipe").is_fifo()
    assert Path("checks/checks.json").is_fifo()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (TUNE, "cannot write ticket-finetuned.safetensors: {}; choose another --out"),
        (("compact", "ticket.safetensors"), "cannot write ticket-compact.safetensors: {}; choose"),
        (CHECK, "cannot write out/checks.json: {}; choose another --out"),
        ((*RUN, "run"), "cannot read or write run: {}; make room; nothing else was changed"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_a_full_disk_names_the_target(command, monkeypatch, words, what):
    write = os.write

    def full(handle, data):
        if data.startswith(b"process "):  # what a lock says
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data)

    monkeypatch.setattr(os, "write", full)
    shown = command(*words)
    assert shown.exit_code == 2, shown.output
    assert f"gemkit: {what.format(os.strerror(errno.ENOSPC))}" in shown.stderr


def test_force_replaces_a_link_to_a_file_and_leaves_the_file(command):
    """A link that leads nowhere is replaced, too."""
    Path("file").write_text("precious")
    for link, target in (("link", "file"), ("dangling", "nothing")):
        Path(link).symlink_to(target)
        assert "overwrite it with --force" in command(*TUNE, "--out", link).stderr
        assert command(*TUNE, "--out", link, "--force").exit_code == 0
        assert not Path(link).is_symlink()
    assert Path("file").read_text() == "precious"


# --- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_says_whether_the_file_is_written(command, monkeypatch, number):
    with monkeypatch.context() as patch:
        meanwhile(patch, lambda: os.kill(os.getpid(), number))
        shown = command(*TUNE)
    words = f"gemkit: stopped by {number.name}; ticket-finetuned.safetensors"
    assert shown.exit_code == 128 + number
    assert f"{words} was not written\n" in shown.stderr
    assert names() == ["ticket.safetensors"]
    save = Ticket.save

    def stopped(*values, **others):
        save(*values, **others)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Ticket, "save", stopped)
    assert f"{words} is written\n" in command(*TUNE).stderr
