"""Stages at work: a result is stored only under a key that is right for it."""

import signal

import pytest
from studies import TINY, cells_of

from gemkit import load_plugins
from gemkit.core.errors import CheckError, DataError
from gemkit.runs.read_config import config_from
from gemkit.runs.resolved import resolve
from gemkit.study import work
from gemkit.study.stage_store import StageStore
from gemkit.study.work import _check_key, carry_out

PLUGIN = '''
from gemkit import MeasuredScores, hookimpl

class Mine(MeasuredScores):
    """Mine."""
    name = "mine"
    def importance(self, probe):
        return {name: weight.abs() for name, weight in probe.weights.items()}

@hookimpl
def gemkit_scores():
    return [Mine]

@hookimpl
def gemkit_pruners():
    return {"mine": {"scores": "mine"}}
'''


def carried_out(stage, folder):
    """Carry out a stage, and return how it ended and whether it has a result."""
    store = StageStore(folder / "study")
    ended = carry_out({**stage.task, "store": str(store.path), "cwd": str(folder)})
    return ended, store.result(stage.name) is not None


def test_no_result_is_stored_once_a_plugin_file_has_changed(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    registry = load_plugins(files=[file], only=())
    [cell] = cells_of(TINY | {"pruner": "mine", "density": 0.3}, registry=registry)
    search, finetune = cell.stages.values()
    assert carried_out(search, tmp_path) == ({"state": "done"}, True)
    file.write_text(PLUGIN + "\n# changed\n")
    ended, there = carried_out(finetune, tmp_path)
    assert (ended["state"], there) == ("failed", False)
    assert "(mine.py) has changed since the study was started" in ended["reason"]
    file.write_text(PLUGIN)
    assert carried_out(finetune, tmp_path) == ({"state": "done"}, True)


NETWORK = """
from torch import nn

def net(shape, classes):
    channels, height, width = shape
    first = nn.Linear(channels * height * width, 8)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(8, classes))
"""


def test_no_result_is_stored_once_an_own_network_has_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "net_at_work.py"
    file.write_text(NETWORK)
    [cell] = cells_of(TINY | {"model": "net_at_work:net", "pruner": "snip", "density": 0.3})
    search, _ = cell.stages.values()
    file.write_text(NETWORK + "\n# changed\n")
    ended, there = carried_out(search, tmp_path)
    assert (ended["state"], there) == ("failed", False)
    assert "(net_at_work) has changed since" in ended["reason"]
    file.write_text(NETWORK)
    assert carried_out(search, tmp_path) == ({"state": "done"}, True)


def test_a_check_that_lacks_its_data_is_tried_again_and_one_that_does_not_fit_is_not(
    tmp_path, monkeypatch
):
    [cell] = cells_of(TINY | {"pruner": "random", "density": 0.3}, checks=["shuffle"])
    search, _, check = cell.stages.values()
    assert carried_out(search, tmp_path) == ({"state": "done"}, True)
    errors = [DataError("the disk is not mounted"), CheckError("it cannot be shuffled")]

    def fails(*words):
        raise errors.pop(0)

    monkeypatch.setattr(work, "fair_control", fails)
    ended, there = carried_out(check, tmp_path)
    assert (ended["state"], there) == ("failed", False)
    assert carried_out(check, tmp_path) == ({"state": "done"}, True)


def test_a_stage_that_was_saved_with_another_default_starts_again(tmp_path):
    [cell] = cells_of(TINY | {"pruner": "random", "density": 0.3})
    search, finetune = cell.stages.values()
    assert carried_out(search, tmp_path) == ({"state": "done"}, True)
    store = StageStore(tmp_path / "study")
    folder = store.folder(finetune.name)
    other = {**finetune.about["plan"], "momentum": 0.8}
    (folder.checkpoints).mkdir(parents=True)
    (folder.checkpoints / "00000001.safetensors").write_bytes(b"of that default")
    store.begin(finetune.name, {**finetune.about, "plan": other})
    assert carried_out(finetune, tmp_path) == ({"state": "done"}, True)
    assert "a default has changed" in folder.log.read_text()


def test_a_ticket_of_another_kind_of_device_is_refused(tmp_path):
    [cell] = cells_of(TINY | {"pruner": "random", "density": 0.3})
    search, finetune = cell.stages.values()
    assert carried_out(search, tmp_path) == ({"state": "done"}, True)
    store = StageStore(tmp_path / "study")
    store.write_result(store.result(search.name).model_copy(update={"device": "cuda:0"}))
    ended, there = carried_out(finetune, tmp_path)
    assert (ended["state"], there) == ("failed", False)
    assert "its search ran on 'cuda:0', and here there is 'cpu'" in ended["reason"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"pruner": "snip", "seed": 3, "density": "2%"},
        {"pruner": "lamp", "recipe": {"scores": {"name": "lamp", "of": "snip"}}},
        {"pruner": "dense"},
        {"pruner": "synflow", "search": {"epochs": 3}, "finetune": {"lr": 0.05}},
        {"model": "conv4"},
        {"dataset": "digits", "metric": "f1"},
        {"recipe": {"regularizer": {"weight": 3e-3}}, "on_collapse": "keep-one"},
        {"objective": {"name": "cross_entropy", "smoothing": 0.1}},
        {"runtime": {"threads": 2, "precision": "bf16", "compile": True, "compact": True}},
        {"run": {"data_dir": "elsewhere", "checkpoint_minutes": 3.0}},
    ],
    ids=str,
)
def test_a_worker_finds_the_keys_of_its_driver(change):
    registry = load_plugins(only=())
    checks = ["shuffle", "reinit:kaiming_normal", "linear_mode_connectivity"]
    [cell] = cells_of({**TINY, **change}, checks=checks, registry=registry)
    for stage in cell.stages.values():
        run = resolve(registry, config_from(stage.task["config"]), stage.task["model"])
        _check_key(stage.task, run, registry)


def test_a_signal_amid_imports_ends_the_process_and_is_no_failure(tmp_path, monkeypatch):
    handlers = []

    def loaded(files):
        handlers.append(signal.getsignal(signal.SIGTERM))
        return load_plugins(only=())

    monkeypatch.setattr(work, "_registry", loaded)
    [cell] = cells_of(TINY)
    search, _ = cell.stages.values()
    assert carried_out(search, tmp_path) == ({"state": "done"}, True)
    assert handlers[0] == signal.getsignal(signal.SIGTERM), "plugins are loaded before"
