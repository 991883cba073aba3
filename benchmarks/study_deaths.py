"""Deaths on Parsl: a worker, the driver, a whole block, the interchange, and Ctrl-C.

    python -m benchmarks.studies deaths                (needs gemkit[cluster])

Every death comes in the middle of a stage that has saved. Afterwards all results are compared, to
the bit, with those of an undisturbed study in local processes.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.studies import executions, finished, output, results, started

FEW = (
    *("--pruner", "gem_miner,snip", "--density", "0.3", "--seeds", "1", "--check", "shuffle"),
    *("--model", "conv4", "-o", "model.width=4", "--dataset", "fake", "-o", "dataset.samples=80"),
    *("--epochs", "8", "--batch-size", "16", "--device", "cpu", "--checkpoint-minutes", "0"),
    *("--jobs", "1"),
)
"""Two cells, six stages; every step is saved."""
ON_PARSL = ("--on", "parsl:local", "-o", "executor.deadline=900")
PATIENCE = 120.0
"""Seconds until a process that is still there is an orphan."""

Driver = subprocess.Popen[bytes]


def at_work(out: Path, driver: Driver, since: float = 0.0) -> int:
    """Wait until a stage has saved since a moment, and return the process that holds its lock."""
    while driver.poll() is None:
        for stage in out.glob("stages/*"):
            new = any(_saved_at(file) > since for file in stage.glob("checkpoints/*.safetensors"))
            if new and (holder := _holder(stage / ".lock")) is not None:
                return holder
        time.sleep(0.01)
    raise SystemExit(f"the driver ended before that: {output(out)[-2000:]}")


def _saved_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _holder(lock: Path) -> int | None:
    """Return the process that holds a lock, from the kernel's list."""
    try:
        inode = lock.stat().st_ino
    except OSError:
        return None
    rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    pids = [int(row[4]) for row in rows if row[5].rpartition(":")[2] == str(inode)]
    return pids[0] if pids else None


def processes() -> dict[int, tuple[int, int, int]]:
    """Return parent, group and session of every process that is alive."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if words[0] != "Z":
            found[int(file.parent.name)] = (int(words[1]), int(words[2]), int(words[3]))
    return found


def family(driver: Driver) -> set[int]:
    """Return the processes of a study without its driver: of its session, and its children."""
    known = processes()
    return {
        pid
        for pid, (parent, _, session) in known.items()
        if driver.pid in (parent, session) and pid != driver.pid
    }


def kill_worker(driver: Driver, worker: int) -> None:
    os.kill(worker, signal.SIGKILL)


def kill_driver(driver: Driver, worker: int) -> None:
    os.kill(driver.pid, signal.SIGKILL)


def kill_block(driver: Driver, worker: int) -> None:
    """Kill the manager, its workers and its shells at once, as the loss of a node does."""
    os.killpg(processes()[worker][1], signal.SIGKILL)


def kill_interchange(driver: Driver, worker: int) -> None:
    [one] = [pid for pid, (parent, _, _) in processes().items() if parent == driver.pid]
    os.kill(one, signal.SIGKILL)


def interrupt(driver: Driver, worker: int) -> None:
    """Press Ctrl-C: a terminal signals the group of the driver."""
    os.killpg(driver.pid, signal.SIGINT)


DEATHS: dict[str, Callable[[Driver, int], None]] = {
    "worker": kill_worker,
    "block": kill_block,
    "driver": kill_driver,
    "interchange": kill_interchange,
    "ctrl-c": interrupt,
}


def deaths(folder: Path) -> dict[str, Any]:
    """Let everything die once, each in a study of its own."""
    straight = folder / "straight"
    finished(straight, *FEW)
    expected = results(straight)
    return {name: _one(folder / name, kill, expected) for name, kill in DEATHS.items()}


def _one(out: Path, kill: Callable[[Driver, int], None], expected: object) -> dict[str, Any]:
    driver = started(out, *FEW, *ON_PARSL)
    worker = at_work(out, driver)
    others = family(driver)
    kill(driver, worker)
    began = time.monotonic()
    code = driver.wait(600)
    ended = round(time.monotonic() - began, 1)
    while (left := (others | family(driver)) & processes().keys()) and (
        time.monotonic() < began + ended + PATIENCE
    ):
        time.sleep(0.1)
    alone = round(time.monotonic() - began - ended, 1)
    said = [line for line in output(out).splitlines() if "tried again" in line or "Parsl" in line]
    if code != 0:
        finished(out, *FEW, *ON_PARSL)
    counts, repeated = executions(out)
    return {
        "exit code, and seconds until then": [code, ended],
        "seconds until all other processes ended": alone if not left else f"{len(left)} are left",
        "said": said[:2],
        "equal to the bit": results(out) == expected,
        "executions": dict(counts),
        "finished stages that ran again": repeated,
    }
