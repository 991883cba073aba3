"""The study of all of CIFAR-10: its data, and its table."""

from concurrent.futures import Executor, Future
from pathlib import Path

import pytest
from reports import record
from studies import TINY as STUDY

from benchmarks.full_resolution import gather, measured, table
from gemkit import load_plugins
from gemkit.study.grid import read_grid
from gemkit.study.study import Study

ROOT = Path(__file__).parents[3]


class Inline(Executor):
    """Run every stage in this process."""

    def submit(self, fn, /, *args):
        future = Future()
        future.set_result(fn(*args))
        return future


@pytest.mark.parametrize("name", ["cifar10-full-resolution", "cifar10-full-resolution-more"])
def test_the_study_is_sound_and_treats_all_methods_alike(name, tmp_path):
    registry = load_plugins(files=[ROOT / "plugins/gemkit-cts/gemkit_cts.py"])
    grid = read_grid(ROOT / "benchmarks" / f"{name}.toml")
    cells = Study.of(grid, tmp_path / "none", registry=registry).cells
    assert len(cells) == 3 * len(grid.variant)
    configs = [cell.info.config for cell in cells]
    for field in ("model", "dataset", "runtime"):
        assert all(one[field] == configs[0][field] for one in configs), field
    plans = [one["finetune"] | {"epochs": None} for one in configs]
    assert all(plan == plans[0] for plan in plans)


def test_results_are_kept_without_tickets_and_not_measured_again(tmp_path):
    study, store = Study([STUDY], tmp_path / "study", checks=["shuffle"]), tmp_path / "store"
    study.run(Inline())
    gather([study.store.path], store)
    gather([study.store.path], store)
    names = {file.name for file in (store / "stages").glob("*/*")}
    assert names == {"stage.json", "result.json"}
    again = Study([STUDY], store, checks=["shuffle"])
    assert [one["after"] for one in measured(store)] == [one["after"] for one in study.results()]
    assert again.board().missing() == []


def test_what_is_half_done_is_continued_from_its_ticket(tmp_path):
    study, store = Study([STUDY], tmp_path / "study"), tmp_path / "store"
    study.run(Inline())
    [finetuned] = (study.store.path / "stages").glob("finetune-*/result.json")
    finetuned.unlink()
    gather([study.store.path], store)
    Study([STUDY], store).run(Inline())
    gather([], store)
    assert [one["after"] is None for one in measured(store)] == [False]
    assert not list(store.rglob("ticket.safetensors")), "no stage needs it any more"
    [failed] = Study([STUDY], store, checks=["shuffle"]).run(Inline())
    assert "has lost its ticket; remove that folder to search again" in failed["problem"]


def test_the_table_has_a_row_for_each_method_and_density():
    own = [
        record(seed=seed) | {"variant": "Gem-Miner, auto", "density": 0.0144} for seed in (0, 1, 2)
    ]
    for one in own:
        plain = {"finetune": {"epochs": 20}, "runtime": {"precision": "bf16"}}
        one["config"] = one["config"] | plain
    mean = 100 * sum(one["after"] for one in own) / 3
    *_, row = table(own).splitlines()
    assert row.startswith("| Gem-Miner, auto | 1.44 % |")
    assert f"| {mean:.1f} ± " in row
    assert "| 77.89 |" in row
    assert "| bf16 |" in row
    assert row.endswith("| 3 |")
