"""Parsl: a local pool for real, and the submit script of Slurm."""

import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemkit.core.errors import OptionError, StudyError
from gemkit.study.executors import Parsl

pytest.importorskip("parsl", reason="Parsl is not installed: gemkit[cluster]")

from parsl.jobs.states import JobState, JobStatus

from gemkit.study import interchange
from gemkit.study.parsl_pool import (
    _LEASH,
    GiveUp,
    ParslPool,
    accelerators,
    slurm_config,
    start,
    worker_init,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # Parsl leaves sockets open

SBATCH = """#!/bin/sh
cp "$1" "$SUBMITTED"
echo Submitted batch job 17
"""


def test_a_local_pool_answers_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pool = start(Parsl(site="local"), jobs=1, threads=1)
    try:
        assert isinstance(pool, ParslPool)
        assert pool.submit(divmod, 7, 2).result(60) == (3, 1)
        assert pool.submit(os.getenv, "OMP_NUM_THREADS").result(60) == "1"
        assert isinstance(pool.submit(divmod, 1, 0).exception(60), ZeroDivisionError)
    finally:
        pool.shutdown(cancel_futures=True)
    assert list(tmp_path.iterdir()) == []


def ends(pid, seconds=30):
    """Return whether a process ends soon; a zombie has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_the_end_of_the_interchange_is_an_error_that_says_how_to_continue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pool = start(Parsl(site="local"), jobs=1, threads=1)
    try:
        worker = pool.submit(os.getpid).result(60)
        lost = pool.submit(os.system, "sleep 600")
        pool._executors[0].interchange_proc.kill()
        assert "interchange" in str(lost.exception(60))
        with pytest.raises(StudyError, match=r"finished stages are kept, and the same command"):
            pool.submit(os.getpid)
    finally:
        pool.shutdown(cancel_futures=True)
    assert ends(worker)


def test_blocks_that_fail_one_after_the_other_end_a_study():
    stopped, give_up = [], GiveUp()
    executor = SimpleNamespace(bad_state_is_set=False, set_bad_state_and_fail_all=stopped.append)
    failed = JobStatus(JobState.FAILED, message="no such file", exit_code=127)
    fine = JobStatus(JobState.COMPLETED)
    give_up(executor, {"0": failed, "1": failed})
    give_up(executor, {"8": failed, "9": fine, "10": failed, "11": failed})
    assert not stopped
    give_up(executor, {"8": fine, "9": failed, "10": failed, "11": failed})
    [error] = stopped
    assert str(error) == (
        "3 blocks failed one after the other, the last with code 127: no such file"
    )


def test_blocks_that_failed_before_a_stage_ended_do_not_count():
    stopped, give_up, ends, fails = [], GiveUp(), Future(), Future()
    executor = SimpleNamespace(
        bad_state_is_set=False,
        set_bad_state_and_fail_all=stopped.append,
        block_error_handler=give_up,
    )
    pool = ParslPool.__new__(ParslPool)  # without a running Parsl
    pool._executors, futures = [executor, SimpleNamespace()], iter([ends, fails])
    pool._pool = SimpleNamespace(submit=lambda stage: next(futures))
    pool.submit(print)
    pool.submit(print)
    failed = JobStatus(JobState.FAILED)
    give_up(executor, dict.fromkeys("01", failed))
    ends.set_result(None)
    give_up(executor, dict.fromkeys("0123", failed))
    assert not stopped, "a stage has ended after the second"
    fails.set_exception(OSError("its block is lost"))
    give_up(executor, dict.fromkeys("01234", failed))
    assert len(stopped) == 1


@pytest.mark.parametrize("dies", ["driver", "script"])
def test_a_local_block_ends_with_its_driver_and_its_script(dies):
    driver = subprocess.Popen(["sleep", "60"])
    script = (
        f"{_LEASH.format(driver=driver.pid, grace=0)}\n(trap '' TERM; sleep 60) & echo $!; wait"
    )
    with subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.PIPE, text=True, process_group=0
    ) as block:
        inner = int(block.stdout.readline())
        dead = driver if dies == "driver" else block
        dead.kill()
        dead.wait()
        ended = ends(inner)
        with suppress(ProcessLookupError):
            os.killpg(block.pid, signal.SIGKILL)
    driver.kill()
    driver.wait()
    assert ended, "it ignores SIGTERM, and is killed"


def test_the_interchange_ends_with_its_driver():
    program = [sys.executable, "-P", interchange.__file__]
    theirs, own = os.pipe()  # its input stays open, or the end of that would end it
    code = (
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([*{program!r}, str(os.getpid())], stdin={theirs})\n"
        "print(child.pid, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[theirs],
        text=True,
    ) as driver:
        child = int(driver.stdout.readline())
        driver.send_signal(signal.SIGKILL)
    try:
        assert ends(child)
    finally:
        os.close(own)
        os.close(theirs)


def test_a_pool_that_does_not_start_is_an_error_after_a_deadline():
    part = Parsl(site="local", setup="sleep 600", deadline=1.0)
    with pytest.raises(StudyError, match=r"no worker of Parsl has started within 1 s"):
        start(part, jobs=1, threads=1)


def test_the_submit_script_of_slurm(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(SBATCH)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SUBMITTED", str(tmp_path / "submitted"))
    part = Parsl(
        site="slurm",
        partition="gpu",
        account="lab",
        walltime="04:00:00",
        nodes=2,
        gpus=4,
        workers=4,
        cores=32,
        options="#SBATCH --mem=64G",
        setup="module load cuda",
    )
    [executor] = slurm_config(part, threads=2).executors
    assert (executor.max_workers_per_node, len(executor.available_accelerators)) == (4, 4)
    executor.provider.script_dir = str(tmp_path)
    assert executor.provider.submit("process_worker_pool.py", tasks_per_node=1) == "17"
    lines = (tmp_path / "submitted").read_text().splitlines()
    for line in (
        "#SBATCH --partition=gpu",
        "#SBATCH --account=lab",
        "#SBATCH --nodes=2",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --cpus-per-task=32",
        "#SBATCH --mem=64G",
        "module load cuda",
        "export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive",
    ):
        assert line in lines, line
    assert any("--time=04:00:00" in line or "--time=240" in line for line in lines)
    assert any(line.startswith("export PATH=") for line in lines)
    assert any("srun" in line for line in lines)
    assert not any("--exclusive" in line for line in lines)


def test_workers_get_groups_of_gpus():
    assert accelerators(3, 1) == ["0", "1", "2"]
    assert accelerators(5, 2) == ["0,1", "2,3"]
    assert accelerators(0, 1) == accelerators(1, 2) == []


def test_workers_find_what_the_driver_finds(monkeypatch):
    monkeypatch.syspath_prepend("/some where")
    lines = worker_init(3, "").splitlines()
    assert "'/some where:" in lines[1]
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "is neither parsl:local nor parsl:slurm nor"), ("x = 1", "has no variable `config`")],
)
def test_a_file_without_a_configuration_is_one_sentence(text, words, tmp_path):
    file = tmp_path / "site.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OptionError, match=words):
        start(Parsl(site=str(file)), jobs=1, threads=1)


def test_a_file_of_your_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("site.py").write_text(
        "from parsl.config import Config\n"
        "from parsl.executors import ThreadPoolExecutor\n"
        "config = Config(executors=[ThreadPoolExecutor()], initialize_logging=False)\n"
    )
    pool = start(Parsl(site="site.py"), jobs=1, threads=1)
    try:
        assert pool.submit(divmod, 7, 2).result(60) == (3, 1)
    finally:
        pool.shutdown(cancel_futures=True)
