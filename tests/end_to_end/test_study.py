"""Real studies: killed drivers, killed workers, two drivers, signals, and the command line.

Longer versions of these, at ten kills and on the digits: `python -m benchmarks.studies`.
"""

import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from cli_runs import answer, commands_in

from benchmarks.studies import Immediately, executions, results
from gemkit import Study
from gemkit.cli import main
from gemkit.study import load
from gemkit.study.executors import Local

TOY = (
    *("--pruner", "gem_miner,snip", "--density", "0.3", "--seeds", "1", "--check", "shuffle"),
    *("--model", "conv4", "-o", "model.width=4", "--dataset", "fake", "-o", "dataset.samples=80"),
    *("--epochs", "8", "--batch-size", "16", "--device", "cpu", "--checkpoint-minutes", "0"),
)
"""Two cells, six stages; every step is saved."""


SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["gemkit.cli.configure", "gemkit.cli.study", "gemkit.study.study"])


def drive(out, words):
    """Be a process that runs a study."""
    os.setsid()
    torch.set_num_threads(1)
    os.environ["GEMKIT_PLUGINS"] = ""
    log = os.open(out.parent / f"{out.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    main(["study", *TOY, "--jobs", "1", "--out", str(out), *words])


def started(out, *words):
    """Start a driver in a session of its own."""
    process = SERVER.Process(target=drive, args=(out, words))
    process.start()
    return process


def output(out):
    return (out.parent / f"{out.name}.log").read_text()


def saved(out):
    """List the stages that are at work and have saved a step."""
    return [one.parent for one in out.glob("stages/*/checkpoints") if len(list(one.iterdir())) > 1]


def until(condition, process, seconds=300):
    """Wait until something is true while a process is at work, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert process.is_alive(), "it ended before that"
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A study to which nothing happens."""
    out = tmp_path_factory.mktemp("studies") / "undisturbed"
    process = started(out)
    process.join()
    assert process.exitcode == 0, output(out)
    counts, repeated = executions(out)
    assert counts["started"] == counts["done"] == 6
    assert not repeated
    return out


def test_killed_workers_and_drivers_cost_no_result(undisturbed, tmp_path):
    """Kill a worker, then its driver; then let two drivers at once finish the study."""
    out = tmp_path / "killed"
    process = started(out)
    [first, *_] = until(lambda: saved(out), process)
    [worker] = [
        int(child)
        for file in Path(f"/proc/{process.pid}/task").glob("*/children")
        for child in file.read_text().split()
    ]
    os.kill(worker, signal.SIGKILL)
    until(lambda: "resumed in" in (first / "log.txt").read_text(), process)
    assert "it is tried again from its last checkpoint" in output(out)
    until(lambda: [one for one in saved(out) if one != first], process)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    both = [started(out) for _ in range(2)]
    for driver in both:
        driver.join()
    assert [driver.exitcode for driver in both] == [0, 0], output(out)
    counts, repeated = executions(out)
    assert results(out) == results(undisturbed)
    assert not repeated
    assert (counts["started"], counts["done"]) == (6 + 2, 6), "two were at work when killed"
    assert counts["resumed"] >= 1


def test_a_signal_stops_promptly_with_everything_saved(tmp_path):
    out = tmp_path / "stopped"
    process = started(out)
    [folder, *_] = until(lambda: saved(out), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    began = time.monotonic()
    process.join(60)
    assert process.exitcode == 130, output(out)
    assert time.monotonic() - began < 30
    assert "stopped by SIGINT; what is finished is kept" in output(out)
    assert "Traceback" not in output(out)
    log = (folder / "log.txt").read_text()
    assert "stopped by a signal" in log or "done" in log


def test_the_command_again_does_nothing_and_more_seeds_only_what_is_missing(
    undisturbed, tmp_path, monkeypatch
):
    out, expected = undisturbed, results(undisturbed)
    gemkit = commands_in(tmp_path, monkeypatch)
    planned = answer(gemkit("study", *TOY, "--out", out, "--dry-run", "--json"))
    assert (planned["there"], planned["missing"], planned["seconds"]) == (6, [], 0)
    again = gemkit("study", *TOY, "--out", out)
    assert again.exit_code == 0, again.stderr
    assert "cells: 2 done; 6 of 6 stages done" in again.stdout
    assert executions(out)[0]["started"] == 6
    more = answer(gemkit("study", *TOY, "--seeds", "2", "--out", out, "--dry-run", "--json"))
    assert len(more["missing"]) == 6
    assert more["seconds"] > 0
    status = gemkit("study", "status", out)
    assert "gem_miner  0.3" in status.stdout
    assert [record["state"] for record in load(out).results()] == ["done", "done"]
    assert results(out) == expected


def test_a_study_measures_what_a_run_with_checks_does(undisturbed, tmp_path, monkeypatch):
    """Bits depend on the configuration, not on who runs it."""
    out = undisturbed
    gemkit = commands_in(tmp_path, monkeypatch)
    words = [word.replace("gem_miner,snip", "gem_miner") for word in TOY]
    place = words.index("--seeds")
    words[place : place + 2] = ["--seed", "0"]
    ran = gemkit(
        "run", *words, "--threads", "1", "--check-seeds", "1", "--on-collapse", "warn", "--json"
    )
    found = json.loads(ran.stdout)
    [record, _] = load(out).results()
    assert (record["before"], record["after"]) == (found["before"], found["after"])
    [ticket, control] = found["checks"]["trials"]
    assert record["controls"]["shuffle"] == {key: control[key] for key in ("before", "after")}
    assert record["layers"] == [
        [one["name"], one["kept"], one["prunable"]] for one in found["layers"]
    ]
    assert ticket["after"] == record["after"]
    assert [one["epoch"] for one in record["curves"]["search"]] == list(range(1, 9))
    assert record["bound"][-1][1] == pytest.approx(0.3, abs=0.01)


SMALL = {
    "model": {"name": "conv4", "width": 4},
    "dataset": {"name": "fake", "samples": 60},
    "search": {"epochs": 2, "batch_size": 16},
    "runtime": {"device": "cpu"},
    "density": 0.3,
}


def test_a_study_from_python(tmp_path):
    axes = {"pruner": ["snip", "dense"]}
    checks = ["shuffle", "linear_mode_connectivity"]
    study = Study(None, tmp_path / "mine", base=SMALL, grid=axes, checks=checks)
    records = study.run(Immediately(), progress=False)
    assert [record["state"] for record in records] == ["done", "done"]
    assert [record["density"] for record in records] == [0.3, 1.0]
    assert [list(record["controls"]) for record in records] == [["shuffle"], []]
    assert [list(record["measurements"]) for record in records] == [[checks[1]], []]
    assert records[0]["unmade"] == {}
    assert records == study.results() == load(tmp_path / "mine").results()


def test_failures_are_one_sentence_and_code_1(tmp_path, monkeypatch):
    monkeypatch.setattr(Local, "start", lambda *options: Immediately())
    gemkit = commands_in(tmp_path, monkeypatch)
    words = ["--pruner", "snip,random", "--density", "0.3", "--dataset", "fake", "--epochs", "1"]
    words += ["-o", "dataset.samples=60", "-o", "finetune.lr=1e30", "--device", "cpu"]
    result = gemkit("study", *words, "--out", "mine")
    assert result.exit_code == 1
    assert "not finite" in result.stdout
    assert "failed stages are tried again by the same command" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    status = answer(gemkit("study", "status", "mine", "--json"))
    assert status["cells"] == {"done": 0, "partial": 0, "failed": 2, "missing": 0}
    assert [one["before"] is None for one in load("mine").results()] == [False, False]


def test_a_full_disk_is_a_failure_with_a_sentence_and_keeps_the_rest(tmp_path, monkeypatch):
    study = Study(None, tmp_path / "mine", base=SMALL, grid={"pruner": ["snip", "random"]})
    [kept, lost] = [cell.info for cell in study.cells]
    replace = os.replace

    def full(source, target, **options):
        if Path(f"/proc/self/fd/{options['src_dir_fd']}").readlink().name == lost.finetune:
            raise OSError(28, "No space left on device", str(target))
        return replace(source, target, **options)

    monkeypatch.setattr(os, "replace", full)
    records = study.run(Immediately(), progress=False)
    assert [record["state"] for record in records] == ["done", "failed"]
    assert "No space left on device; make room" in records[1]["problem"]
    monkeypatch.undo()
    files = (tmp_path / "mine" / "stages" / lost.finetune).rglob("*")
    assert not [file for file in files if file.name in ("result.json", "failed.json")]
    assert not [file for file in files if file.name.endswith(".tmp")]
    ran = Counter(study.store.folder(kept.search).log.read_text().split())["started"]
    assert [record["state"] for record in study.run(Immediately(), progress=False)] == ["done"] * 2
    assert Counter(study.store.folder(kept.search).log.read_text().split())["started"] == ran


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--pruner", "snip,nonsense"], "unknown pruner 'nonsense'"),
        (["--pruner", "snip,,grasp"], "has an empty value"),
        (["--density", "0.1,2"], "density = 2"),
        (["-o", "searchlr=1"], "'searchlr' is no field of a run"),
        (["-o", "search.lr"], "write field=value"),
        (["--seeds", "2", "--seed", "1"], "--seed and --seeds both"),
        (["--density", "0.05", "--sparsity", "0.5"], "--density and --sparsity both set density"),
        (["--lr", "0.1,0.2", "-o", "search.lr=3"], "--lr and -o search.lr both set search.lr"),
        (["--out", ".", "--dry-run"], "exists and is no study"),
        (["--check", "nonsense"], "unknown check 'nonsense'"),
        (["--on", "nowhere"], "unknown executor 'nowhere'"),
        (["--on", "local:3"], "takes nothing after a colon"),
        (["missing.toml"], "cannot be read"),
        (["status", "nowhere"], "is no study"),
        (["--dataset", "cifar10", "--data-dir", "nowhere"], "nowhere"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_mistakes_are_one_sentence_before_any_work(words, sentence, tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    Path("notes.txt").touch()
    result = gemkit("study", *words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert not list(tmp_path.glob("studies/*/stages/*"))


def test_a_study_file_with_axes_on_the_command_line(tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    Path("mine.toml").write_text('seeds = 2\n[grid]\npruner = ["snip", "grasp"]\n')
    words = ["mine.toml", "--density", "0.3,0.2", "-o", "search.lr=0.1,0.2", "--dry-run", "--json"]
    planned = answer(gemkit("study", *words))
    assert (planned["study"], planned["cells"]) == ("mine", 16)
    assert answer(gemkit("study", "mine.toml", "--seed", "7", "--dry-run", "--json"))["cells"] == 2
    Path("code.toml").write_text('[base]\nmodel = "os:system"\n')
    refused = gemkit("study", "code.toml", "--dry-run")
    assert refused.exit_code == 2, "a file alone runs no code"
