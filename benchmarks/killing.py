"""Real `gemkit` processes that are killed at random moments, and what they leave behind."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NamedTuple

PLUGINS = {"cts_kl": "cts", "fisher": "hutchinson"} | {
    name: name.replace("_", "-") for name in ("cts", "ac_dc", "px", "hutchinson", "wanda")
}
"""Pruners of packages under plugins/."""
COMMON = (
    *("--dataset", "fake", "-o", "dataset.samples=80", "-o", "model.width=4", "--model", "conv4"),
    *("--batch-size", "16", "--density", "0.3", "--device", "cpu", "--on-collapse", "warn"),
    *("--finetune-epochs", "3", "--out", "run"),
)
PRUNERS = {
    "gem_miner": ("--epochs", "6", "-o", "schedule.every=2", "--rounding", "bernoulli"),
    "edge_popup": ("--epochs", "4", "-o", "search.optimizer=adam", "--check", "shuffle"),
    "synflow": ("-o", "schedule.rounds=5", "-o", "finetune.optimizer=adamw"),
    "imp_long_warm": ("--epochs", "3", "-o", "rewind.weights=1.5", "-o", "rewind.clock=1.5"),
    "gradual_magnitude": ("--epochs", "4", "--checkpoint-minutes", "0.002"),
}
MORE = {
    "rigl": ("--epochs", "4", "-o", "schedule.every=3"),
    "set": ("--epochs", "4", "-o", "schedule.every=3", "-o", "search.optimizer=adamw"),
    "continuous_sparsification": ("--epochs", "4"),
    "movement": ("--epochs", "4"),
    "lamp": ("--epochs", "2"),
    "cts": ("--epochs", "4"),
    "cts_kl": ("--epochs", "4"),
    "ac_dc": ("--epochs", "4"),
    "px": ("--epochs", "2"),
    "hutchinson": ("--epochs", "2"),
    "fisher": ("--epochs", "2"),
    "wanda": ("--epochs", "2"),
}
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["gemkit.cli.configure", "gemkit.cli.reporting", "gemkit.runs.run"])


def command(
    folder: Path, words: tuple[str, ...], prepare: Callable[[], None] | None, *, fresh: bool
) -> None:
    """Be a process that runs one command, in a session of its own; `fresh` starts Python again."""
    import torch

    from gemkit.cli import main

    os.setsid()
    torch.set_num_threads(1)
    os.chdir(folder)
    os.environ["GEMKIT_PLUGINS"] = ""
    log = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if prepare is not None:
        prepare()
    if fresh:
        os.execv(sys.executable, [sys.executable, "-m", "gemkit", *words])
    main(list(words))


def started(
    folder: Path,
    words: tuple[str, ...],
    prepare: Callable[[], None] | None = None,
    *,
    fresh: bool = False,
) -> ForkServerProcess:
    """Start a command in a folder; its output is appended to the file `output` there."""
    folder.mkdir(exist_ok=True)
    own = {"fresh": fresh}
    process = SERVER.Process(target=command, args=(folder, words, prepare), kwargs=own)
    process.start()
    return process


def left_behind(folder: Path) -> dict[str, object]:
    """Return all that a run leaves, except times and the files that describe how it went."""
    found: dict[str, object] = {}
    for path in sorted(path for path in (folder / "run").rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.name in {".lock", "log.txt", "environment.json"} or path.suffix in {".png", ".svg"}:
            continue
        if path.suffix == ".jsonl":
            found[name] = [timeless(line) for line in path.read_text().splitlines()]
        else:
            found[name] = (
                timeless(path.read_text()) if path.suffix == ".json" else path.read_bytes()
            )
    return found


def timeless(text: str) -> dict[str, object]:
    """Read a line of JSON without its times."""
    return {name: value for name, value in json.loads(text).items() if "seconds" not in name}


def plugin(pruner: str) -> tuple[str, ...]:
    """Return the option that loads a pruner of plugins/."""
    if pruner not in PLUGINS:
        return ()
    package = f"gemkit-{PLUGINS[pruner]}"
    folder = Path(__file__).parents[1] / "plugins" / package
    return ("--plugin", str(folder / f"{package.replace('-', '_')}.py"))


def options(pruner: str, own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command of a tiny run that saves after every step, unless its own words differ."""
    minutes = () if "--checkpoint-minutes" in own else ("--checkpoint-minutes", "0")
    seeds = ("--check-seeds", "1") if "--check" in own else ()
    return ("run", "--pruner", pruner, *COMMON, *own, *minutes, *seeds, *plugin(pruner))


class Killed(NamedTuple):
    """How many processes were killed, how many runs they made, and what went wrong."""

    kills: int
    runs: int
    problems: list[str]


def killed(pruner: str, own: tuple[str, ...], place: Path, kills: int, seed: int) -> Killed:
    """Kill so many processes of a run, and compare what they resume to with a run left alone."""
    words, again = options(pruner, own), ("resume", "run", *plugin(pruner))
    fresh = "--devices" in own  # its processes start the command of the first one again
    started(place / "nothing", ("--version",)).join()  # the server is up from here on
    began = time.perf_counter()
    whole = started(place / "straight", words, fresh=fresh)
    whole.join()
    length = time.perf_counter() - began
    expected = left_behind(place / "straight")
    if whole.exitcode != 0 or "run/finetuned.safetensors" not in expected:
        return Killed(0, 0, [(place / "straight" / "output").read_text()])
    chance, moments, runs = random.Random(seed), list[float](), 0
    while len(moments) < kills:
        folder = place / f"killed-{runs}"
        while True:
            begun = (folder / "run" / "config.toml").exists()
            resumes, moment = chance.random() < 0.5, chance.uniform(0, 0.8 * length)
            process = started(folder, again if begun and resumes else words, fresh=fresh)
            process.join(moment if len(moments) < kills else None)
            if process.exitcode is None:
                _kill(process)
            if process.exitcode != -signal.SIGKILL:
                break
            moments.append(moment)
        runs += 1
        plan = f"{pruner}, seed {seed}, killed after so many seconds: {moments}"
        if process.exitcode != 0:
            return Killed(len(moments), runs, [f"{plan}\n{(folder / 'output').read_text()}"])
        if left_behind(folder) != expected:
            return Killed(len(moments), runs, [f"{plan}: other files than without kills"])
        shutil.rmtree(folder)
    return Killed(len(moments), runs, [])


def _kill(process: ForkServerProcess) -> None:
    """Kill a command and the processes that it has started."""
    pid = process.pid
    assert pid is not None
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has not made its session yet
        process.kill()
    process.join()
