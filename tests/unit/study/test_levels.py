"""Levels that searches share: which ones, when, and that no bit changes."""

import pytest
from studies import TINY, cells_of, driven

from gemkit.runs.directory import RunDir
from gemkit.study.handover import start_from
from gemkit.study.stage_store import StageStore
from gemkit.study.work import carry_out
from gemkit.training.checkpoint import CheckpointDir

SHORT = TINY | {"pruner": "imp_short_cold", "search": {"batch_size": 16}, "schedule.every": 1}


def searches(**axes):
    """Return the searches of a grid by density and seed."""
    cells = cells_of(SHORT | axes.pop("base", {}), **axes)
    return {(cell.info.density, cell.info.seed): cell.stages[cell.info.search] for cell in cells}


def test_a_search_comes_after_the_next_denser_one_of_its_configuration():
    found = searches(grid={"density": [0.05, 0.2, 0.9, 0.02]}, seeds=2)
    rounds = [len(found[density, 0].levels) + 1 for density in (0.2, 0.05, 0.02)]
    assert rounds == [8, 14, 18]
    assert found[0.05, 1].after == found[0.2, 1].name
    assert found[0.05, 1].task["after"] == found[0.2, 1].name
    assert found[0.2, 1].after is None, "0.9 takes a single round, so it has no level to share"
    assert len(found[0.2, 0].levels) == 7
    assert found[0.05, 0].levels[:7] == found[0.2, 0].levels
    assert found[0.05, 0].levels[7] != 0.2


@pytest.mark.parametrize(
    ("base", "axes"),
    [
        ({"pruner": "gem_miner"}, {}),
        ({"pruner": "gradual_magnitude"}, {}),
        ({"objective": "mse"}, {}),
        ({}, {"zip": [{"density": [0.2, 0.05], "schedule.fraction": [0.2, 0.3]}], "grid": {}}),
        ({}, {"zip": [{"density": [0.2, 0.05], "search.lr": [0.1, 0.2]}], "grid": {}}),
    ],
    ids=["learned", "another schedule", "objective", "fraction", "learning rate"],
)
def test_what_may_depend_on_the_target_or_differs_is_not_shared(base, axes):
    base = {key: one for key, one in (SHORT | base).items() if key != "schedule.every"}
    cells = cells_of(base, **({"grid": {"density": [0.2, 0.05]}} | axes))
    assert [stage.after for cell in cells for stage in cell.stages.values()] == [None] * 4


def measured(stage, folder):
    """Carry out a search, and return what it measured, with the lines of its log."""
    store = StageStore(folder)
    ended = carry_out({**stage.task, "store": str(folder), "cwd": str(folder.parent)})
    assert ended == {"state": "done"}
    return store.result(stage.name).measured(), store.folder(stage.name).log.read_text()


@pytest.mark.parametrize("pruner", ["imp_short_warm", "lr_rewinding"])
def test_shared_levels_change_no_bit(pruner, tmp_path):
    base = {"pruner": pruner, "rewind.clock": 0.0}
    base |= {"rewind.weights": 0.5} if pruner == "imp_short_warm" else {}
    found = searches(base=base, grid={"density": [0.5, 0.3]})
    dense, sparse = found[0.5, 0], found[0.3, 0]
    alone, log = measured(sparse, tmp_path / "alone")
    assert "continues" not in log
    measured(dense, tmp_path / "shared")
    shared, log = measured(sparse, tmp_path / "shared")
    assert shared == alone
    assert f"continues from the levels of {dense.name}" in log
    assert log.count("freeze at") == 6 - 3
    assert shared["ticket"] is not None


@pytest.fixture
def former(tmp_path):
    """The folder of a search that has saved its levels, and these."""
    stage = searches(grid={"density": [0.5]})[0.5, 0]
    measured(stage, tmp_path)
    return StageStore(tmp_path).folder(stage.name), stage.levels


def test_the_metrics_of_levels_are_those_in_their_state(former, tmp_path):
    folder, levels = former
    lines = folder.metrics.read_bytes()
    folder.metrics.write_bytes(b"changed")
    other = RunDir(tmp_path / "search-other")
    other.path.mkdir()
    assert start_from(other, "other", folder, levels)
    assert 0 < len(other.metrics.read_bytes()) < len(lines)
    assert lines.startswith(other.metrics.read_bytes())


@pytest.mark.parametrize("change", [{"run": "of another"}, {"phase": "finetune"}], ids=str)
def test_a_state_that_is_not_of_the_former_search_is_not_continued(change, former, tmp_path):
    folder, levels = former
    saved = CheckpointDir(folder.path / "levels")
    saved.add(saved.newest()[0]._replace(**change))
    other = RunDir(tmp_path / "search-other")
    other.path.mkdir()
    assert not start_from(other, "other", folder, levels)
    assert not other.checkpoints.exists()


def test_a_search_that_starts_again_forgets_the_levels_it_had(former):
    folder, levels = former
    folder.checkpoints.mkdir()
    (folder.checkpoints / "00000001.safetensors").touch()
    assert not start_from(folder, "its", None, levels)
    assert (folder.path / "levels").exists(), "it resumes"
    folder.finish()
    assert not start_from(folder, "its", None, levels)
    assert not (folder.path / "levels").exists()


def test_a_former_search_that_fails_holds_up_nothing(tmp_path):
    cells = cells_of(SHORT, grid={"density": [0.05, 0.2]})
    failed = {"state": "failed", "reason": "it diverged"}
    board, view, _ = driven(cells, tmp_path, {"search": [failed, {}]})
    assert view.order[:2] == ["search imp_short_cold 0.2 s0", "search imp_short_cold 0.05 s0"]
    assert list(board.failures) == [cells[1].info.search]
    assert cells[0].info.finetune in board.results
