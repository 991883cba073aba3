"""The study of all of CIFAR-10: its data, and its table."""

from pathlib import Path

import pytest
from reports import record

from benchmarks.full_resolution import gather, table
from gemkit import load_plugins
from gemkit.study.grid import read_grid
from gemkit.study.study import Study

ROOT = Path(__file__).parents[3]


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


def test_a_record_with_more_controls_replaces_one_with_fewer():
    full = record()
    half = full | {"controls": {}, "after": None}
    assert gather([half], [full]) == [full]
    assert gather([full], [half]) == [full]
    assert gather([], [record() | {"before": None}]) == []


def test_the_table_has_a_row_for_each_method_and_density():
    own = [
        record(seed=seed) | {"variant": "Gem-Miner, auto", "density": 0.0144} for seed in (0, 1, 2)
    ]
    for one in own:
        one["config"] = one["config"] | {"finetune": {"epochs": 20}}
    mean = 100 * sum(one["after"] for one in own) / 3
    *_, row = table(own).splitlines()
    assert row.startswith("| Gem-Miner, auto | 1.44 % |")
    assert f"| {mean:.1f} ± " in row
    assert "| 77.89 |" in row
    assert row.endswith("| 3 |")
