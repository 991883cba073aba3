"""Studies under bad conditions: killed drivers and workers, two drivers, a thousand cells, Parsl.

    python -m benchmarks.studies kill --kills 10
    python -m benchmarks.studies worker
    python -m benchmarks.studies drivers
    python -m benchmarks.studies overhead --cells 1000
    python -m benchmarks.studies parsl                 (needs gemkit[cluster])
    python -m benchmarks.studies deaths                (needs gemkit[cluster])

Every study is made twice, undisturbed and disturbed, and all results are compared to the bit.
Stages append a line to their log when they start and when they are done, so executions can be
counted.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from gemkit.study.driver import Board, Driver, StudyView
from gemkit.study.stage_store import Epoch, StageResult, StageStore
from gemkit.study.study import Study, load

TOY = (
    *("--pruner", "gem_miner,snip,synflow", "--density", "0.05,0.02", "--seeds", "2"),
    *("--check", "shuffle,reinit", "--model", "conv4", "--dataset", "digits", "--epochs", "4"),
    *("--batch-size", "64", "--device", "cpu", "--checkpoint-minutes", "0.01", "--jobs", "2"),
)
"""Twelve cells, 48 stages, which save twice a second."""


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "gemkit", "study", *TOY, "--out", str(out), *more]


def started(out: Path, *more: str) -> "subprocess.Popen[bytes]":
    """Start a driver in a session of its own, so that its group can be killed."""
    log = (out.parent / f"{out.name}.log").open("ab")
    return subprocess.Popen(command(out, *more), stdout=log, stderr=log, start_new_session=True)


def finished(out: Path, *more: str) -> float:
    """Run a driver to its end, and return how long that took."""
    began = time.perf_counter()
    process = started(out, *more)
    if process.wait() != 0:
        raise SystemExit(output(out)[-2000:])
    return time.perf_counter() - began


def output(out: Path) -> str:
    """Return what the drivers of a study printed."""
    return (out.parent / f"{out.name}.log").read_text()


def results(out: Path) -> dict[str, Any]:
    """Return what every stage measured, without times."""
    store = StageStore(out)
    found = {stage: store.result(stage) for stage in sorted(store.present())}
    return {stage: result and result.measured() for stage, result in found.items()}


def executions(out: Path) -> tuple[Counter[str], list[str]]:
    """Count starts, resumptions and ends of stages, and list those started after their end."""
    counts: Counter[str] = Counter()
    repeated = []
    for log in sorted(out.glob("stages/*/log.txt")):
        words = [line.split("  ", 1)[1] for line in log.read_text().splitlines()]
        kinds = [word.split()[0] for word in words]
        counts.update(kind for kind in kinds if kind in ("started", "resumed", "done"))
        if "started" in kinds[kinds.index("done") :] or kinds.count("done") != 1:
            repeated.append(log.parent.name)
    return counts, repeated


def kill(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Kill a driver, or its whole group, at random moments."""
    straight, killed = folder / "straight", folder / "killed"
    length, chance = finished(straight), random.Random(arguments.seed)
    kills = []
    while len(kills) < arguments.kills:
        process = started(killed)
        moment, group = chance.uniform(0.2, 0.5) * length, chance.random() < 0.5
        try:
            process.wait(moment)
            break  # it was faster; nothing is left to kill
        except subprocess.TimeoutExpired:
            (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
            process.wait()
            done = sum((one / "result.json").exists() for one in killed.glob("stages/*"))
            kills.append((round(moment, 1), "group" if group else "driver", done))
    finished(killed)
    counts, repeated = executions(killed)
    return {
        "seconds undisturbed": round(length, 1),
        "kills (seconds, what, stages done)": kills,
        "equal to the bit": results(straight) == results(killed),
        "stages": len(results(killed)),
        "executions": dict(counts),
        "finished stages that ran again": repeated,
    }


def worker(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Kill workers in the middle of a stage; their driver tries that stage again."""
    from benchmarks.study_deaths import at_work

    straight, hurt = folder / "straight", folder / "hurt"
    finished(straight)
    process, last = started(hurt), 0.0
    for _ in range(3):
        os.kill(at_work(hurt, process, since=last), signal.SIGKILL)
        last = time.time()
    code = process.wait()
    counts, repeated = executions(hurt)
    return {
        "workers killed": 3,
        "exit code": code,
        "equal to the bit": results(straight) == results(hurt),
        "executions": dict(counts),
        "finished stages that ran again": repeated,
    }


def drivers(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run two drivers on one store."""
    straight, shared = folder / "straight", folder / "shared"
    finished(straight)
    both = [started(shared, "--jobs", "1") for _ in range(2)]
    codes = [process.wait() for process in both]
    counts, repeated = executions(shared)
    return {
        "exit codes": codes,
        "equal to the bit": results(straight) == results(shared),
        "executions": dict(counts),
        "finished stages that ran again": repeated,
    }


def parsl(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the study in local processes and on Parsl's."""
    local, other = folder / "local", folder / "parsl"
    seconds = [finished(local), finished(other, "--on", "parsl:local")]
    return {
        "seconds on local, parsl:local": [round(one, 1) for one in seconds],
        "equal to the bit": results(local) == results(other),
    }


def deaths(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Let workers, blocks and drivers of Parsl die."""
    from benchmarks.study_deaths import deaths

    return deaths(folder)


# --- a thousand cells -----------------------------------------------------------------------------


class Immediately(Executor):
    """Run everything at once, in this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":  # noqa: ANN401
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def pretend(task: Mapping[str, Any]) -> dict[str, Any]:
    """Write a result as a stage of thirty epochs would."""
    store, stage = StageStore(Path(task["store"])), f"{task['kind']}-{task['key']}"
    store.folder(stage).path.mkdir(parents=True, exist_ok=True)
    with store.folder(stage).locked():
        store.begin(stage, task["about"])
        curve = [Epoch(epoch=one, metric=0.5, density=0.05, loss=1.0, lr=0.1) for one in range(30)]
        result = StageResult(
            stage=stage,
            metric="accuracy",
            higher_is_better=True,
            before=0.25,
            after=0.75,
            kept=5,
            prunable=100,
            layers=[(f"layer{one}", 1, 20) for one in range(5)],
            curve=curve,
            ticket="pretended",
            seconds=1.0,
            cpu_seconds=1.0,
        )
        store.write_result(result)
    return {"state": "done"}


def overhead(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure what a driver costs by itself: two stages for each cell, which do nothing."""
    times, began, memory = {}, time.perf_counter(), _memory()
    processor = time.process_time()

    def timed(name: str) -> None:
        nonlocal began
        times[name] = round(time.perf_counter() - began, 2)
        began = time.perf_counter()

    out = folder / "many"
    grid = {"pruner": ["snip", "random"], "density": [0.05, 0.02]}
    base = {"model": "conv4", "dataset": "digits"}
    study = Study(None, out, base=base, grid=grid, seeds=arguments.cells // 4)
    timed("make the cells")
    study.store.make()
    board = Board.of("many", study.cells, study.store)
    study.store.write_cells("many", [cell.info for cell in study.cells])
    Driver(board, study.store, StudyView()).run(Immediately(), 2, pretend)
    timed("run")
    processor = time.process_time() - processor
    status = load(out).status().to_data()
    timed("status")
    records = load(out).results()
    timed("results")
    return {
        "cells": len(study.cells),
        "stages": status["stages"]["done"],
        "seconds": times,
        "milliseconds per cell": round(
            1000 * (times["make the cells"] + times["run"]) / len(records), 2
        ),
        "of these the processor works": round(1000 * processor / len(records), 2),
        "megabytes more": round(_memory() - memory, 1),
        "megabytes in all": round(_memory(), 1),
    }


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


MEASURED = {
    "kill": kill,
    "worker": worker,
    "drivers": drivers,
    "overhead": overhead,
    "parsl": parsl,
    "deaths": deaths,
}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=MEASURED)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep everything here")
    arguments = parser.parse_args(words)
    folder = arguments.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        print(json.dumps(MEASURED[arguments.what](folder, arguments), indent=1))
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
