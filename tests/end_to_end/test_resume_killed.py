"""Real `gemkit run` processes, killed at random moments: what they resume to is equal to the bit.

GEMKIT_LONG=1 kills 40 processes of every pruner instead of 4, and tries more pruners. GEMKIT_SEED=N
draws moments by that seed, which a failure prints, instead of by another one every time.
"""

import json
import multiprocessing
import os
import random
import shutil
import time
from pathlib import Path

import pytest
import torch

from gemkit.cli import main

LONG = bool(os.environ.get("GEMKIT_LONG"))
KILLS = 40 if LONG else 4
"""Processes to kill for each pruner."""

SEED = int(os.environ.get("GEMKIT_SEED") or random.SystemRandom().getrandbits(32))

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
PLUGINS = {"cts_kl": "cts", "fisher": "hutchinson"} | {
    name: name.replace("_", "-") for name in ("cts", "ac_dc", "px", "hutchinson", "wanda")
}
"""Pruners of packages under plugins/."""
PRUNERS |= MORE if LONG else {}
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["gemkit.cli.configure", "gemkit.cli.reporting", "gemkit.runs.run"])


def command(folder: Path, words: tuple[str, ...]) -> None:
    """Be a process that runs one command."""
    torch.set_num_threads(1)
    os.chdir(folder)
    os.environ["GEMKIT_PLUGINS"] = ""
    log = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    main(list(words))


def started(folder: Path, words: tuple[str, ...]) -> multiprocessing.Process:
    folder.mkdir(exist_ok=True)
    process = SERVER.Process(target=command, args=(folder, words))
    process.start()
    return process


def left_behind(folder: Path) -> dict[str, object]:
    """Return everything that a run leaves, without times, and what only tells how it went."""
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
    return {name: value for name, value in json.loads(text).items() if "seconds" not in name}


def plugin(pruner: str) -> tuple[str, ...]:
    if pruner not in PLUGINS:
        return ()
    package = f"gemkit-{PLUGINS[pruner]}"
    folder = Path(__file__).parents[2] / "plugins" / package
    return ("--plugin", str(folder / f"{package.replace('-', '_')}.py"))


def options(pruner: str) -> tuple[str, ...]:
    minutes = () if "--checkpoint-minutes" in PRUNERS[pruner] else ("--checkpoint-minutes", "0")
    seeds = ("--check-seeds", "1") if "--check" in PRUNERS[pruner] else ()
    return ("run", "--pruner", pruner, *COMMON, *PRUNERS[pruner], *minutes, *seeds, *plugin(pruner))


@pytest.mark.parametrize("pruner", PRUNERS)
def test_killed_at_any_moment_a_run_resumes_to_the_same_bits(pruner, tmp_path):
    started(tmp_path / "nothing", ("--version",)).join()  # the server is up from here on
    first = tmp_path / "straight"
    began = time.perf_counter()
    whole = started(first, options(pruner))
    whole.join()
    length = time.perf_counter() - began
    assert whole.exitcode == 0, (first / "output").read_text()
    expected = left_behind(first)
    assert {"run/ticket.safetensors", "run/finetuned.safetensors"} < set(expected)

    chance, kills, moments = random.Random(SEED), 0, []
    while kills < KILLS:
        folder = tmp_path / f"killed-{len(moments)}"
        while True:
            begun = (folder / "run" / "config.toml").exists()
            resumes, moment = chance.random() < 0.5, chance.uniform(0, 0.8 * length)
            again = ("resume", "run", *plugin(pruner))
            process = started(folder, again if begun and resumes else options(pruner))
            moments.append(moment)
            plan = f"GEMKIT_SEED={SEED}, killed after so many seconds: {moments}"
            process.join(moment if kills < KILLS else None)
            process.kill()
            process.join()
            if process.exitcode == 0:
                break
            assert process.exitcode == -9, f"{plan}\n{(folder / 'output').read_text()}"
            kills += 1
        assert left_behind(folder) == expected, plan
        shutil.rmtree(folder)
