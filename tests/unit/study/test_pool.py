"""The pool of processes: their deaths, their signals, and the death of their parent."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from studies import TINY, Here

from gemkit.study.executors import MANY, Local, Parsl, environment, visible_gpus
from gemkit.study.pool import LocalPool, WorkerDiedError
from gemkit.study.study import Study

# Functions of these processes have to be importable there: those of the standard library are.


@pytest.fixture(scope="module")
def pool():
    with LocalPool([{"PLACE": "0"}, {"PLACE": "1"}]) as made:
        yield made


def test_a_process_that_dies_fails_its_own_task_alone(pool):
    good = [pool.submit(os.getpid) for _ in range(4)]
    killed = pool.submit(os.kill, 0, signal.SIGKILL)  # its own group: it has a session of its own
    left = pool.submit(os._exit, 3)
    words = pool.submit(sys.exit, "last words")
    after = [pool.submit(os.getpid) for _ in range(4)]
    wait([*good, killed, left, words, *after], timeout=120)
    with pytest.raises(WorkerDiedError, match=r"SIGKILL.*lack of memory"):
        killed.result(0)
    with pytest.raises(WorkerDiedError, match="ended with code 3"):
        left.result(0)
    with pytest.raises(WorkerDiedError, match=r"with code 1: .*last words"):
        words.result(0)
    assert os.getpid() not in {future.result(0) for future in (*good, *after)}


def test_an_error_is_that_of_its_future(pool):
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        pool.submit(divmod, 1, 0).result(60)
    assert pool.submit(divmod, 7, 2).result(60) == (3, 1)


def test_processes_have_their_own_environment(pool):
    found = {pool.submit(os.getenv, "PLACE").result(60) for _ in range(20)}
    assert found <= {"0", "1"}


def test_cancelling_does_not_start_what_waits_and_stops_what_runs():
    pool = LocalPool([{}])
    pool.submit(os.getpid).result(60)
    running, waiting = pool.submit(time.sleep, 600), pool.submit(os.getpid)
    while not running.running():
        time.sleep(0.01)
    time.sleep(0.5)
    pool.shutdown(cancel_futures=True)
    assert waiting.cancelled()
    with pytest.raises(WorkerDiedError, match="SIGTERM"):
        running.result(0)  # a stage would have saved; time.sleep has nothing to save
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(os.getpid)


class Emptied:
    """A queue that another thread empties between a look and a `get`, which would wait forever."""

    def __init__(self, queue):
        self.put, self.get, self.get_nowait = queue.put, queue.get, queue.get_nowait

    def empty(self):
        return False


def test_cancelling_never_waits_for_a_task_that_is_gone():
    pool = LocalPool([{}])
    pool._tasks = Emptied(pool._tasks)
    closing = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


PARENT = """
import os, time
from gemkit.study.pool import LocalPool
pool = LocalPool([{}, {}])
futures = [pool.submit(time.sleep, 600) for _ in range(2)]
while len(pool.pids()) < 2: time.sleep(0.01)
time.sleep(0.5)
print(*pool.pids(), flush=True)
time.sleep(600)
"""


def test_processes_end_with_their_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "they are still alive"
        time.sleep(0.05)


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_gpus_are_handed_out_one_each(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    assert visible_gpus() == ["4", "5", "7"]
    found = [environment(place, 2, 1)["CUDA_VISIBLE_DEVICES"] for place in range(4)]
    assert found == ["4", "5", "7", "4"]
    assert [environment(place, 2, 2)["CUDA_VISIBLE_DEVICES"] for place in range(2)] == ["4,5"] * 2
    assert Local().jobs(threads=1, devices=1) == 3
    assert Local().jobs(threads=1, devices=2) == 1


def test_without_gpus_cores_are_shared_by_threads(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("gemkit.study.executors.cores", lambda: 16)
    assert Local().jobs(threads=1, devices=1) == 16
    assert Local().jobs(threads=4, devices=2) == 2
    assert Local().jobs(threads=32, devices=1) == 1
    assert "CUDA_VISIBLE_DEVICES" not in environment(0, 2, 1)
    assert environment(0, 2, 1)["OMP_NUM_THREADS"] == "2"


def test_a_process_that_is_just_being_started_is_stopped_too():
    with LocalPool([{}]) as own:
        own._workers[0].stop()
        with pytest.raises(WorkerDiedError):
            own.submit(time.sleep, 15).result(10)


def test_a_worker_ends_with_its_parent_although_another_process_holds_the_pipe(tmp_path):
    worker = "import gemkit.study.worker as w; w._LOOK = 0.2; w.main({}, {})"
    parent = f"""
import os, subprocess, sys
from multiprocessing.connection import Pipe
own, theirs = Pipe()
holder = subprocess.Popen(["sleep", "60"], pass_fds=[own.fileno()])
code = {worker!r}.format(theirs.fileno(), os.getpid())
child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()])
print(holder.pid, child.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as made:
        holder, child = map(int, made.stdout.readline().split())
        made.kill()
    try:
        for _ in range(300):
            state = Path(f"/proc/{child}/stat")
            if not state.exists() or ") Z " in state.read_text():
                break
            time.sleep(0.1)
        else:
            pytest.fail("it is still there")
    finally:
        os.kill(holder, signal.SIGKILL)


def test_an_executor_gets_as_many_stages_as_it_has_room_for(tmp_path):
    study = Study([TINY], tmp_path)
    with ThreadPoolExecutor(3) as pool:
        assert study._started(pool, None) == (pool, 3)
        assert study._started(pool, 2) == (pool, 2)
    assert study._started(Here(study.store), None)[1] == MANY
    assert Parsl(site="mine.py").jobs(threads=1, devices=1) == MANY
    assert Parsl(site="slurm", workers=4, nodes=2, blocks=3).jobs(threads=1, devices=1) == 24
