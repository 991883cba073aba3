"""The runs of a ledger say how far they are, and stop when their parent is asked to stop."""

import fcntl
import itertools
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import pytest

from gemkit.core.errors import OptionError, Stopped
from gemkit.core.events import PhaseStarted, StepEnded
from gemkit.report.progress import Slow
from gemkit.study import store
from gemkit.study.store import Ledger
from gemkit.study.watching import watched


def endless(run):
    """Return at once for seed 1, else train without an end and report every step."""
    if run["seed"] == 1:
        return run
    watch = watched("a run", partial(Slow, seconds=0))
    watch(PhaseStarted("search", 1, 10))
    for step in itertools.count(1):
        watch(StepEnded("search", step))
        time.sleep(0.01)
    raise AssertionError("unreachable")


def test_a_signal_to_the_parent_stops_its_processes(tmp_path, monkeypatch):
    """Those that wait in the queue of the pool must not start either."""
    lines, number = [], signal.SIGTERM

    def hear(self, text):
        if not lines:
            os.kill(os.getpid(), number)
        lines.append(text)

    monkeypatch.setattr("gemkit.study.counting.Lines.note", hear)
    ledger = Ledger(tmp_path / "l.jsonl", ("seed",))
    with pytest.raises(Stopped) as stopped:
        ledger.complete([{"seed": seed} for seed in (1, 2, 3, 4)], endless, jobs=1)
    words = f"stopped by SIGTERM; finished runs are in {ledger.path}, and the same command"
    assert str(stopped.value).startswith(words)
    assert stopped.value.signal == number
    assert ledger.rows() == [{"seed": 1}]
    assert lines[0] == "a run: search: step 1/10"


@pytest.mark.parametrize("stop", [Stopped(signal.SIGTERM), KeyboardInterrupt()])
def test_nothing_is_said_to_be_kept_if_no_run_is_finished(tmp_path, monkeypatch, stop):
    def fail(*_: object) -> None:
        raise stop

    monkeypatch.setattr(Ledger, "_complete", fail)
    with pytest.raises(Stopped, match=r"stopped by SIG(TERM|INT); no run is finished, and the"):
        Ledger(tmp_path / "l.jsonl", ("seed",)).complete([{"seed": 1}], endless, jobs=1)


def test_a_run_outside_a_ledger_is_not_stopped():
    watched("a run")(StepEnded("search", 1))


def test_a_row_that_another_process_is_writing_is_kept(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", ("seed",))
    with ledger.path.open("ab", buffering=0) as file, ThreadPoolExecutor(1) as pool:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(b'{"seed"')
        other = pool.submit(ledger.append, {"seed": 2})
        assert not wait([other], timeout=0.2).done
        file.write(b": 1}\n")
        fcntl.flock(file, fcntl.LOCK_UN)
        other.result()
    assert ledger.rows() == [{"seed": 1}, {"seed": 2}]


def test_a_row_that_another_process_appends_before_a_start_is_kept(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "new" / "l.jsonl", ("seed",))
    looks = {name: getattr(store, name) for name in ("open_plain", "check_writable")}

    def meanwhile(look, *words):
        found = looks[look](*words)
        ledger.path.write_text('{"seed": 7}\n')
        return found

    for look in looks:
        monkeypatch.setattr(store, look, partial(meanwhile, look))
    ledger.check_writable()
    monkeypatch.undo()
    assert ledger.rows() == [{"seed": 7}]


def test_a_look_whether_a_ledger_can_be_written_leaves_no_file(tmp_path):
    Ledger(tmp_path / "l.jsonl", ("seed",)).check_writable()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="cannot write results to"):
        Ledger(tmp_path / "file" / "l.jsonl", ("seed",)).check_writable()
