"""A process of a run that is killed: the others end, and the first one says so."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from cli_runs import TINY

from gemkit.core.errors import LostProcessError
from gemkit.runs.failures import explained
from gemkit.training import processes

PLUGIN = '''
import os, signal
from gemkit import Observer, hookimpl
from gemkit.core.events import StepEnded


class Killer(Observer):
    """Kill the second process in its fifth step."""

    name = "killer"

    def listen(self, run_dir):
        def record(event):
            if isinstance(event, StepEnded) and event.step == 5 and os.environ["LOCAL_RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)

        return record


@hookimpl
def gemkit_observers():
    return [Killer]
'''


def test_a_killed_process_of_several_is_one_sentence_and_how_to_resume(tmp_path):
    (tmp_path / "killer.py").write_text(PLUGIN)
    words = ("run", "--pruner", "gem_miner", *TINY, "--devices", "2", "--out", "run")
    words += ("--plugin", "killer.py", "--observer", "killer", "--checkpoint-minutes", "0")
    environment = {name: text for name, text in os.environ.items() if name != "LOCAL_RANK"}
    done = subprocess.run(
        [sys.executable, "-m", "gemkit", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "GEMKIT_PLUGINS": "", "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "gemkit: process 1 of this run was killed by SIGKILL; the run is saved" in done.stderr
    assert "resume it with `gemkit resume run --plugin killer.py`" in done.stderr
    assert list((tmp_path / "run/checkpoints").iterdir())


HANGS = """
import os, signal, subprocess, sys, time
from gemkit.runs.failures import explained
from gemkit.training import processes

processes._GRACE = 0.1
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
processes._children.append(child)
with explained(lambda: "resume it with: this"):
    child.kill()
    processes._watch()  # in a thread of its own, while this one waits for the device
"""


def test_a_first_process_that_waits_for_a_device_ends_too():
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr == (
        "gemkit: process 1 of this run was killed by SIGKILL; resume it with: this\n"
    )


@pytest.mark.parametrize("text", ["[x/gloo/transport/tcp/pair.cc:1] Connection closed by peer"])
def test_a_closed_connection_is_explained_and_another_error_is_not(text):
    words = "another process of this run ended; nothing is lost"
    with pytest.raises(LostProcessError, match=words), explained("nothing is lost"):
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="a bug"), explained("nothing is lost"):
        raise RuntimeError("a bug")


def test_the_others_end_when_the_first_is_gone(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    processes._end_with(parent=os.getppid() + 1, grace=0.0)  # another process than there was
    assert ended == [2]
    watched = []
    monkeypatch.setenv("GEMKIT_FIRST_PROCESS", "1")
    monkeypatch.setattr(processes, "end_with", lambda *call: watched.append(call))
    processes.watch_first()
    assert watched == [(1, processes._GRACE)]
    assert "GEMKIT_FIRST_PROCESS" not in os.environ, "children of this process have another parent"


def test_processes_that_end_well_are_no_loss(monkeypatch):
    children = [subprocess.Popen([sys.executable, "-S", "-c", ""]) for _ in range(2)]
    monkeypatch.setattr(processes, "_children", children)
    processes._watch()
    assert processes._lost() is None
    children[1].returncode = -signal.SIGSEGV
    assert processes._lost() == ("process 2 of this run was killed by SIGSEGV", processes._GRACE)
    children[1].returncode = -40  # of the real-time signals only the first and last have a name
    assert processes._lost() == ("process 2 of this run was killed by signal 40", processes._GRACE)
    children[1].returncode = 2
    assert processes.loss_text() == "process 2 of this run ended with code 2"


def test_a_torch_without_distributed_has_no_such_loss(monkeypatch):
    monkeypatch.delattr("torch.distributed.DistError", raising=False)
    assert not processes.is_loss(RuntimeError("a bug"))
    assert processes.is_loss(RuntimeError("Connection closed by peer"))


def test_every_process_that_is_started_knows_its_place(monkeypatch):
    started = []
    done = SimpleNamespace(returncode=0, poll=lambda: 0)
    monkeypatch.setattr(os, "environ", {"RANK": "7"})
    monkeypatch.setattr(processes, "_children", [])
    monkeypatch.setattr(subprocess, "Popen", lambda words, env: started.append(env) or done)
    processes.start(3)
    assert processes.rank() == 0
    for place, environment in enumerate(started, start=1):
        monkeypatch.setattr(os, "environ", environment)
        assert processes.rank() == place
        assert environment["GEMKIT_FIRST_PROCESS"] == str(os.getpid())
    assert len(started) == 2


@pytest.mark.parametrize(
    ("environment", "place"),
    [({}, 0), ({"LOCAL_RANK": "1"}, 1), ({"RANK": "2", "LOCAL_RANK": "0"}, 2), ({"RANK": "x"}, 0)],
)
def test_the_place_of_a_process_is_that_among_all(environment, place, monkeypatch):
    monkeypatch.setattr(os, "environ", environment)
    assert processes.rank() == place
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 3)
    assert processes.rank() == 3
