"""Stages on several devices: the bits of a run on as many, and one set of files."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from studies import REGISTRY, TINY, cells_of

from gemkit import load_plugins
from gemkit.core.errors import LostProcessError, StudyError, TooLittleMemoryError
from gemkit.pruning.search import search
from gemkit.runs.read_config import config_from
from gemkit.runs.resolved import resolve
from gemkit.runs.setup import set_up
from gemkit.study import group, work
from gemkit.study.group import carry_out_together
from gemkit.study.stage_store import StageStore
from gemkit.study.work import carry_out

[CELL] = cells_of(TINY | {"density": 0.3, "runtime": {"device": "cpu", "devices": 2}})
SEARCH = CELL.stages[CELL.info.search]


def found_together(fabric):
    """Search as one of two processes."""
    torch.set_num_threads(1)
    run = resolve(REGISTRY, config_from(SEARCH.task["config"]))
    setup = set_up(run.model, run.dataset, run.seed, run.runtime, fabric, data_dir=None)
    run = run.with_learning_rates(setup.data)
    ticket = search(
        run.recipe,
        setup.model,
        setup.data,
        density=run.density,
        plan=run.search,
        runtime=run.runtime,
        on_collapse=run.on_collapse,
        fabric=fabric,
    )
    return setup.label(ticket, run.plugins).digest()


@pytest.mark.skipif(not os.environ.get("GEMKIT_LONG"), reason="20 seconds: set GEMKIT_LONG=1")
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_two_processes_find_what_a_run_on_two_devices_finds(tmp_path, monkeypatch):
    expected = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork").launch(found_together)
    monkeypatch.setenv("SLURM_NTASKS", "1")  # as in a job of Slurm, where srun started nothing
    monkeypatch.setenv("SLURM_JOB_NAME", "some")
    store = StageStore(tmp_path / "study")
    task = {**SEARCH.task, "store": str(store.path), "cwd": str(tmp_path)}
    assert carry_out(task) == {"state": "done"}
    result, folder = store.result(SEARCH.name), store.folder(SEARCH.name)
    assert result.ticket == expected
    assert folder.log.read_text().count("started") == 1
    assert [path.name for path in store.path.rglob("result.json")] == ["result.json"]
    assert carry_out(task) == {"state": "done"}, "it is there already"


def test_a_process_that_ends_early_is_an_error_with_its_last_words(tmp_path):
    task = {"store": str(tmp_path), "kind": "search"}
    with pytest.raises(StudyError, match=r"ended with code 1: .*KeyError"):
        carry_out_together(task)


def raising(error):
    """Return a function that raises an error, whatever it is called with."""

    def fail(*_, **__):
        raise error

    return fail


def test_another_process_reports_what_it_has_alone_and_the_first_reports_a_loss(
    tmp_path, monkeypatch, capfd
):
    file = tmp_path / "task.json"
    file.write_text("{}")
    watched = []
    monkeypatch.setattr(group, "end_with", watched.append)
    monkeypatch.setattr(work, "join", raising(TooLittleMemoryError("no room")))
    monkeypatch.setattr(work, "work_on", raising(LostProcessError("process 1 ended")))
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit, match="2"):
        group.main(file, 1)
    assert capfd.readouterr().err == "gemkit: process 1: no room\n"
    assert not watched, "processes.watch_first ends it with the first one"
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit, match="gemkit: process 1 ended"):
        group.main(file, 1)
    assert watched == [1]


LEAVING = """
import os
from gemkit import MeasuredScores, hookimpl

class Leaving(MeasuredScores):
    \"\"\"Leave in the second process.\"\"\"

    name = "leaving"

    def importance(self, probe):
        if os.environ["LOCAL_RANK"] == "1":
            {leave}
        return {{name: weight.abs() for name, weight in probe.weights.items()}}

@hookimpl
def gemkit_scores():
    return [Leaving]

@hookimpl
def gemkit_pruners():
    return {{"leaving": {{"help": "Leave", "scores": "leaving", "allocation": "uniform"}}}}
"""


@pytest.mark.parametrize(
    ("leave", "reason"),
    [("raise SystemExit(0)", "SystemExit: 0"), ("raise ValueError('no')", "ValueError: no")],
)
def test_code_that_fails_or_exits_in_another_process_is_named(tmp_path, leave, reason):
    file = tmp_path / "leaving.py"
    file.write_text(LEAVING.format(leave=leave))
    config = {"density": 0.3, "runtime": {"device": "cpu", "devices": 2}, "pruner": "leaving"}
    [cell] = cells_of(TINY | config, registry=load_plugins(files=[file], only=()))
    stage = cell.stages[cell.info.search]
    task = {**stage.task, "store": str(tmp_path / "study"), "cwd": str(tmp_path)}
    with pytest.raises(StudyError) as raised:
        carry_out_together(task)
    words = str(raised.value)
    place = f"at {file}:{LEAVING.partition('{leave}')[0].count(chr(10)) + 1}, in importance"
    assert "gemkit: process 1: scores 'leaving' (plugin given as a file) failed" in words
    assert f": {reason} {place}" in words
    assert "gemkit: process 1 of this run ended with code 1" in words
    assert "Traceback" not in words


def test_too_little_memory_in_another_process_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "_measure", raising(MemoryError()))
    task = {**SEARCH.task, "store": str(tmp_path), "cwd": str(tmp_path)}
    with pytest.raises(TooLittleMemoryError, match="not enough memory"):
        work.join(task)


def test_a_stage_that_lost_a_process_has_not_failed(tmp_path, monkeypatch):
    """An exception, which the driver tries again, as that of a worker that died."""
    monkeypatch.setattr(work, "_measure", raising(RuntimeError("Connection closed by peer")))
    store = StageStore(tmp_path / "study")
    task = {**SEARCH.task, "store": str(store.path), "cwd": str(tmp_path)}
    with pytest.raises(LostProcessError, match="another process of this run ended"):
        work.work_on(task)
    folder = store.folder(SEARCH.name)
    assert "another process" in folder.log.read_text()
    assert not (folder.path / "failed.json").exists()


def test_a_stage_inherits_nothing_of_processes_around_it(monkeypatch):
    kept = {"PATH": "bin", "CUDA_VISIBLE_DEVICES": "3", "RANKING": "x"}
    outer = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT GEMKIT_FIRST_PROCESS SLURM_NTASKS"
    outer += " NODE_RANK TORCHELASTIC_RUN_ID JSM_NAMESPACE_LOCAL_RANK OMPI_COMM_WORLD_SIZE"
    monkeypatch.setattr(group.os, "environ", kept | dict.fromkeys(outer.split(), "1"))
    assert group._surroundings() == kept


WAITING = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from gemkit.study import group
waits = SimpleNamespace(work_on=lambda task: time.sleep(60), join=None)
sys.modules["gemkit.study.work"] = waits  # without torch
group.main(Path(sys.argv[1]), int(sys.argv[2]))
"""
WORKER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:], str(os.getpid())])
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_processes_end_with_their_worker(tmp_path):
    (tmp_path / "task.json").write_text("{}")
    words = [sys.executable, "-c", WORKER, WAITING, str(tmp_path / "task.json")]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        child = Path(f"/proc/{int(worker.stdout.readline())}/stat")
        worker.kill()
    deadline = time.monotonic() + 30
    while child.exists() and ") Z " not in child.read_text():
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.05)
