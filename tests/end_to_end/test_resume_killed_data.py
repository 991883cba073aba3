"""Python processes on data sets and loaders, killed at random moments, resume to the same bits.

GEMKIT_LONG=1 kills 40 processes of every kind of data instead of 1. GEMKIT_SEED=N draws moments by
that seed, which a failure prints.
"""

import multiprocessing
import os
import random
import shutil
import time
from pathlib import Path

import pytest
import torch
from kept import dropping_net
from own_data import Jittered, loader, of_datasets, of_loaders
from tiny import CPU
from torch.utils.data import DataLoader

from gemkit import Plan, finetune, search
from gemkit.training.checkpointer import DiskCheckpointer

KILLS = 40 if os.environ.get("GEMKIT_LONG") else 1
SEED = int(os.environ.get("GEMKIT_SEED") or random.SystemRandom().getrandbits(32))
DATA = {
    "data set with random transforms": lambda: of_datasets(Jittered(96)),
    "loader in a fixed order": lambda: of_loaders(loader(96, 16)),
    "loader that shuffles": lambda: of_loaders(DataLoader(Jittered(96), 16, shuffle=True)),
}
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["gemkit.api", "own_data", "kept"])


def work(folder: Path, kind: str) -> None:
    """Be a process that searches and fine-tunes, or resumes to do so."""
    torch.set_num_threads(1)
    torch.manual_seed(random.SystemRandom().getrandbits(32))  # which must not matter
    os.environ["GEMKIT_PLUGINS"] = ""
    data, plan = DATA[kind](), Plan(epochs=3, batch_size=16, lr=0.1)
    how = {"plan": plan, "runtime": CPU, "progress": False}
    saved = [DiskCheckpointer(folder / phase, phase, minutes=0) for phase in ("search", "finetune")]
    ticket = search(
        "gem_miner",
        dropping_net(),
        data,
        density=0.5,
        on_collapse="warn",
        checkpointer=saved[0],
        **how,
    )
    trained = finetune(ticket, dropping_net(), data, checkpointer=saved[1], **how)
    (folder / "digest").write_text(f"{ticket.digest()} {trained.digest()}")


def started(folder: Path, kind: str) -> multiprocessing.Process:
    folder.mkdir(exist_ok=True)
    process = SERVER.Process(target=work, args=(folder, kind))
    process.start()
    return process


@pytest.mark.parametrize("kind", DATA)
def test_killed_at_any_moment_it_resumes_to_the_same_bits(kind, tmp_path):
    started(tmp_path / "server", kind).join()  # the server is up from here on
    began = time.perf_counter()
    whole = started(tmp_path / "straight", kind)
    whole.join()
    length = time.perf_counter() - began
    assert whole.exitcode == 0
    expected = (tmp_path / "straight" / "digest").read_text()
    chance, kills, moments = random.Random(SEED), 0, []
    while kills < KILLS:
        folder = tmp_path / f"killed-{len(moments)}"
        while not (folder / "digest").exists():
            moments.append(chance.uniform(0, 0.9 * length))
            process = started(folder, kind)
            process.join(moments[-1] if kills < KILLS else None)
            process.kill()
            process.join()
            assert process.exitcode in {0, -9}
            kills += process.exitcode == -9
        plan = f"GEMKIT_SEED={SEED}, killed after so many seconds: {moments}"
        assert (folder / "digest").read_text() == expected, plan
        shutil.rmtree(folder)
