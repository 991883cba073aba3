"""Signals: the first asks a run to stop, the second has the effect it had before the run."""

import os
import signal
import subprocess
import sys

import pytest

from gemkit.cli.reporting import Report
from gemkit.core.errors import Stopped
from gemkit.runs.signals import deferred, raised

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def heard():
    """Install handlers as a caller does, and return the list of signals they receive."""
    numbers = []
    before = {one: signal.signal(one, lambda number, _: numbers.append(number)) for one in BOTH}
    yield numbers
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.parametrize("first", BOTH)
@pytest.mark.parametrize("second", BOTH)
def test_a_second_signal_reaches_the_callers_handler(first, second, heard):
    with deferred() as request:
        os.kill(os.getpid(), first)
        assert heard == []
        os.kill(os.getpid(), second)
    assert (request.signal, heard) == (first, [second])
    os.kill(os.getpid(), first)
    assert heard == [second, first]


def test_a_second_signal_ends_the_command_line(heard):
    with deferred(Report().stopping):
        os.kill(os.getpid(), signal.SIGTERM)
        assert [signal.getsignal(one) for one in BOTH] == [signal.SIG_DFL] * 2
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM], "the caller's handlers are back"


@pytest.mark.parametrize("context", [deferred, raised])
def test_an_ignored_hangup_stays_ignored(context):
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with context():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN


CLOSED = """
import os, signal, sys
from gemkit.runs.signals import deferred, end_at_once

with deferred(end_at_once) as request:
    for number in (int(sys.argv[1]), signal.SIGHUP):
        os.kill(os.getpid(), number)
    print("saved", file=sys.stderr, flush=True)
print("saved")
sys.exit(128 + request.signal)
"""


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.usefixtures("not_under_nohup")
def test_a_run_outlives_its_terminal(first):
    """The shell and the system send a SIGHUP each, or systemd SIGTERM before; only stderr is it."""
    terminal, end = os.openpty()
    os.close(terminal)
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, str(int(first))],
        stdout=subprocess.PIPE,
        stderr=end,
        check=False,
    )
    os.close(end)
    assert (done.returncode, done.stdout) == (128 + first, b"saved\n")


@pytest.mark.usefixtures("not_under_nohup")
def test_work_that_is_stopped_ignores_a_hangup_after_it():
    def work():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)

    with pytest.raises(Stopped) as stopped, raised():
        work()
    assert stopped.value.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_a_hangup_after_another_signal_reaches_the_callers_handler(heard, not_under_nohup):
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    with deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
    assert heard == [signal.SIGHUP]


@pytest.mark.parametrize("context", [deferred, raised])
def test_a_handler_that_python_cannot_restore_stays(context, monkeypatch, heard):
    installed = []
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda number, _: installed.append(number))
    with context():
        pass
    assert installed == []
