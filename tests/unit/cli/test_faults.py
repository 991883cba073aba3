"""Disk errors at any moment: every file stays complete, and the run can be resumed."""

import errno
import json
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from cli_runs import TINY, answer, commands_in

from gemkit.core.atomic_io import write_atomic
from gemkit.core.events import Froze
from gemkit.runs.directory import RunDir
from gemkit.runs.metrics import Metrics
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpoint import CheckpointDir, read

WORDS = ("run", "--pruner", "imp_long_cold", *TINY, "-o", "search.epochs=1", "--out", "run")
SAVING = (*WORDS, "--checkpoint-minutes", "0", "--finetune-epochs", "1")


class Half:
    """A file that takes half of what is written to it, and then no more."""

    def __init__(self, file, error):
        self._file, self._error = file, error

    def write(self, data):
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        raise self._error

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)


@contextmanager
def failing(operation: str, turn: int, code: int) -> Iterator[list[int]]:
    """Let the n-th use of an operation fail, in the run's folder and nowhere else."""
    used = [0]
    error = OSError(code, os.strerror(code))

    def due() -> bool:
        used[0] += 1
        return used[0] == turn

    with pytest.MonkeyPatch.context() as patch:
        if operation in ("open", "write"):
            whole = open

            def opened(path, mode="r", *arguments, **settings):
                ours = mode[0] in "wax" and "run" in Path(path).parts
                if ours and operation == "open" and due():
                    raise error
                file = whole(path, mode, *arguments, **settings)
                return Half(file, error) if ours and operation == "write" and due() else file

            patch.setattr("builtins.open", opened)
        else:
            original = getattr(os, operation)

            def used_once(*arguments, **settings):
                if due():
                    raise error
                return original(*arguments, **settings)

            patch.setattr(os, operation, used_once)
        yield used


def assert_every_file_is_complete(folder: Path) -> None:
    """Read every file that has its final name."""
    run = RunDir(folder)
    for path in folder.rglob("*"):
        assert not path.name.endswith(".tmp"), path
    for path in folder.rglob("*.safetensors"):
        if path.parent == run.checkpoints:
            read(path)
        else:
            Ticket.load(path)
    for path in folder.rglob("*.json"):
        json.loads(path.read_text())
    for path in folder.rglob("*.toml"):
        tomllib.loads(path.read_text())


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    return commands_in(tmp_path, monkeypatch)


def uses(gemkit, operation: str) -> int:
    with failing(operation, 0, errno.EIO) as used:
        assert gemkit(*SAVING[:-1], "0", "--out", "other/run").exit_code == 0
    return used[0]


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_disk_that_fails_at_any_moment_leaves_complete_files_and_a_run_that_resumes(
    gemkit, operation, code
):
    """Each combination is tried at other moments; with GEMKIT_LONG, at all of them."""
    whole = answer(gemkit(*SAVING[:-1], "0", "--out", "whole/run", "--json"))
    assert whole["epochs"] == 6
    many = uses(gemkit, operation)
    assert many > 15
    one = {errno.ENOSPC: 1, errno.EIO: many // 2, errno.EACCES: many - 1}[code]
    for turn in range(1, many) if os.environ.get("GEMKIT_LONG") else [one]:
        folder = Path(f"{operation}{turn}/run")
        words = (*SAVING[:-1], "0", "--out", folder)
        with failing(operation, turn, code):
            shown = gemkit(*words)
        if shown.exit_code != 0:  # only the log, or the name of a folder, may be lost in silence
            assert shown.exit_code == 2, (turn, shown.output, shown.exception)
            assert os.strerror(code) in shown.stderr, turn
            assert "Traceback" not in shown.stderr
        assert_every_file_is_complete(folder)
        assert gemkit(*words).exit_code == 0, turn
        for name in ("ticket.safetensors", "finetuned.safetensors"):
            assert (folder / name).read_bytes() == Path("whole/run", name).read_bytes()


def test_writing_in_place_would_be_noticed(gemkit, monkeypatch):
    def in_place(data: bytes, path: Path, **_: object) -> None:
        with open(path, "wb") as file:  # noqa: PTH123 - as gemkit.core.atomic_io does
            file.write(data)

    for module in ("runs.directory", "tickets.file", "training.checkpoint"):
        monkeypatch.setattr(f"gemkit.{module}.write_atomic", in_place)
    problems = 0
    for turn in range(2, 12):
        folder = Path(f"{turn}/run")
        with failing("write", turn, errno.ENOSPC):
            gemkit(*SAVING, "--out", folder)
        try:
            assert_every_file_is_complete(folder)
        except Exception:
            problems += 1
    assert problems > 3


def test_a_full_disk_says_how_to_resume_and_keeps_the_last_checkpoint(gemkit):
    with failing("fsync", 12, errno.ENOSPC):
        shown = gemkit(*SAVING)
    assert shown.exit_code == 2
    words = r"cannot read or write run/\S+: No space left on device; make room; the run is saved up"
    assert re.search(words, shown.stderr), shown.stderr
    assert "resume it with `gemkit resume run`" in shown.stderr
    found, flaws = CheckpointDir(Path("run/checkpoints")).newest()
    assert found is not None
    assert not flaws
    assert gemkit("resume", "run").exit_code == 0


@pytest.mark.parametrize("name", ["ticket", "finetuned"])
def test_a_ticket_that_cannot_be_saved_says_how_to_resume(gemkit, monkeypatch, name):
    def full(data: bytes, path: Path, **settings: object) -> None:
        if path.stem == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_atomic(data, path, **settings)

    with monkeypatch.context() as patch:
        patch.setattr("gemkit.tickets.file.write_atomic", full)
        shown = gemkit(*SAVING)
    assert shown.exit_code == 2
    assert f"cannot save the ticket as run/{name}.safetensors: No space left" in shown.stderr
    saved = "the run is saved up to its last checkpoint: resume it with `gemkit resume run`\n"
    assert shown.stderr.count(saved) == 1
    assert gemkit("resume", "run").exit_code == 0


def test_metrics_that_cannot_be_written_are_named(tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with Metrics(tmp_path / "metrics.jsonl") as metrics:
        metrics._file = Half(metrics._file, full)
        with pytest.raises(OSError, match=r"No space left on device: '.*/metrics\.jsonl'"):
            metrics(Froze(0, 0.5, 5, 5, 10))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_an_error(gemkit):
    Path("run").mkdir(mode=0o500)
    shown = gemkit(*SAVING)
    assert shown.exit_code == 2
    assert "Permission denied" in shown.stderr


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError("no more"),
    ],
)
def test_a_lack_of_memory_says_what_to_reduce(gemkit, monkeypatch, error):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("gemkit.runs.runner.search", fail)
    shown = gemkit(*WORDS)
    assert shown.exit_code == 2
    assert "there is not enough memory" in shown.stderr
    assert "lower --batch-size" in shown.stderr


def test_another_error_keeps_its_traceback(gemkit, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("gemkit.runs.runner.search", fail)
    shown = gemkit(*WORDS)
    assert isinstance(shown.exception, RuntimeError)
    assert "gemkit:" not in shown.stderr
