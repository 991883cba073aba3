"""File systems without locks: one message before the work, and no result lost."""

import errno
import fcntl
import os

import pytest
from cli_runs import commands_in
from studies import TINY, cells_of

from gemkit.study.store import Ledger
from gemkit.study.work import carry_out


@pytest.fixture(autouse=True)
def _no_locks(monkeypatch):
    def refuse(handle, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_run_is_refused_in_one_message(tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    shown = gemkit("run", "--dataset", "fake", "--epochs", "4", "--device", "cpu", "--out", "mine")
    assert shown.exit_code == 2
    assert "mine cannot be locked, because its file system has no locks" in shown.stderr
    assert "use a folder on another disk" in shown.stderr


def test_a_stage_of_a_study_fails_and_is_not_taken_for_busy(tmp_path):
    """A driver waits for a busy stage, or tries it again at once."""
    [cell] = cells_of(TINY | {"pruner": "random", "density": 0.3})
    search, _ = cell.stages.values()
    ended = carry_out({**search.task, "store": str(tmp_path), "cwd": str(tmp_path)})
    assert ended["state"] == "failed"
    assert "cannot be locked, because its file system has no locks" in ended["reason"]


def test_runs_are_listed(tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    for name in ("config.toml", ".lock"):
        (tmp_path / "runs" / "one" / name).touch()
    shown = gemkit("runs")
    assert shown.exit_code == 0
    assert "interrupted" in shown.stdout


def test_a_ledger_keeps_its_rows(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", ("seed",))
    for seed in (1, 2):
        ledger.append({"seed": seed})
    assert ledger.rows() == [{"seed": 1}, {"seed": 2}]
