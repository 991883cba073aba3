"""The driver: what it submits, in which order, and what becomes of stages that fail."""

import os
import signal
import threading
import time
from concurrent.futures import Future

import pytest
from studies import TINY, Here, Seen, cells_of, driven, pretended

from gemkit.core.errors import Stopped
from gemkit.study.driver import Board, Driver
from gemkit.study.pool import WorkerDiedError
from gemkit.study.records import Records, record_of
from gemkit.study.stage_store import StageStore
from gemkit.study.status import Estimate, Status

CELLS = cells_of(TINY, checks=["shuffle"], grid={"pruner": ["snip", "random"]}, seeds=2)
INFOS = [cell.info for cell in CELLS]
SEEN_AS = [f"{name} 0.05 s{seed}" for seed in (0, 1) for name in ("snip", "random")]


def states(board):
    return [record_of("", cell, board.results, board.failures)["state"] for cell in board.cells]


def test_every_stage_runs_once_and_the_second_time_none(tmp_path):
    board, view, executor = driven(CELLS, tmp_path)
    assert len(board.results) == 12
    assert set(executor.ran.values()) == {1}
    assert view.closed
    assert states(board) == ["done"] * 4
    for position, title in enumerate(view.order):
        kind, _, cell = title.partition(" ")
        if kind != "search":
            assert f"search {cell}" in view.order[:position], "its search comes first"
    _, _, again = driven(CELLS, tmp_path)
    assert not again.ran


def test_a_cell_is_finished_before_the_next_one_starts(tmp_path):
    _, view, _ = driven(CELLS, tmp_path, jobs=1)
    places = [next(cell for cell in SEEN_AS if title.endswith(cell)) for title in view.order]
    assert places == [cell for cell in SEEN_AS for _ in range(3)]


def test_a_search_that_cannot_settle_is_noted_once_before_it_runs(tmp_path):
    cells = cells_of(TINY, grid={"pruner": ["gem_miner"], "search.epochs": [3, 4]}, seeds=2)
    board, view, _ = driven(cells, tmp_path)
    [note] = view.notes
    assert note.startswith("search gem_miner 0.05 epochs 3 s0 and 1 more: the last freeze")
    assert note.endswith("choose another number of epochs or another schedule.every")
    assert board.notes() == [], "nothing is missing any more"


def test_the_note_names_a_field_that_the_schedule_has(tmp_path):
    base = TINY | {"pruner": "gem_miner", "recipe": {"schedule": {"name": "once", "after": 1.0}}}
    [cell] = cells_of(base)
    [note] = {stage.note for stage in cell.stages.values() if stage.note}
    assert note.endswith("choose a smaller schedule.after")


def test_another_seed_density_and_check_run_what_is_missing(tmp_path):
    driven(CELLS, tmp_path)
    more = cells_of(
        TINY, checks=["shuffle", "reinit"], grid={"pruner": ["snip", "random"]}, seeds=3
    )
    _, view, executor = driven(more, tmp_path)
    assert len(executor.ran) == 4 + 2 * 4, "a check of four cells, and two new cells"
    assert {title for title in view.order if "s2" not in title} == {
        f"reinit {name} 0.05 s{seed}" for seed in (0, 1) for name in ("snip", "random")
    }


def test_cells_share_a_search(tmp_path):
    cells = cells_of(TINY, grid={"finetune.lr": [0.1, 0.2, 0.3]})
    board, _, executor = driven(cells, tmp_path)
    assert len(board.stages) == 4
    assert sum(executor.ran.values()) == 4


def test_a_dead_worker_is_tried_again_once(tmp_path):
    died = WorkerDiedError("its process was killed (SIGKILL)")
    board, view, executor = driven(CELLS[:1], tmp_path, {"search": [died, {}]})
    assert not board.failures
    assert sorted(executor.ran.values()) == [1, 1, 2]
    assert view.notes == [
        "search snip 0.05 s0: its process was killed (SIGKILL); it is tried again from its last "
        "checkpoint"
    ]


def test_what_dies_twice_has_failed_and_others_go_their_way(tmp_path):
    board, _, executor = driven(CELLS, tmp_path, {"shuffle": [WorkerDiedError("killed")]})
    assert states(board) == ["failed"] * 4
    assert len(board.results) == 8
    assert [count for stage, count in executor.ran.items() if "check" in stage] == [2] * 4
    assert StageStore(tmp_path).failure(INFOS[0].checks["shuffle"]) == "killed"
    board, _, _ = driven(CELLS, tmp_path)
    assert states(board) == ["done"] * 4, "the next run tries again"


def test_a_failed_search_is_not_tuned_and_a_stage_that_stops_is_tried_again(tmp_path):
    failed = {"state": "failed", "reason": "it diverged"}
    board, view, executor = driven(CELLS[:1], tmp_path, {"search": [failed]})
    assert list(executor.ran.values()) == [1]
    assert board.failures == {INFOS[0].search: "it diverged"}
    assert view.closed
    stopped = {"state": "stopped", "signal": 15}
    board, _, executor = driven(CELLS[:1], tmp_path, {"search": [stopped, {}]})
    assert states(board) == ["done"]


def test_a_network_that_collapsed_is_done(tmp_path):
    lost = {"ticket": None, "before": None, "collapse": "every path is lost"}
    board, _, executor = driven(CELLS[:1], tmp_path, {"search": [lost]})
    assert len(executor.ran) == 1
    assert states(board) == ["done"]
    assert not board.missing()
    record = record_of("", INFOS[0], board.results, board.failures)
    assert (record["collapse"], record["before"], record["ticket"]) == (
        "every path is lost",
        None,
        None,
    )


def test_a_stage_of_another_driver_is_waited_for(tmp_path):
    store = StageStore(tmp_path)
    name = INFOS[0].search
    store.folder(name).path.mkdir(parents=True)
    held, free = threading.Event(), threading.Event()

    def other():
        with store.folder(name).locked():
            held.set()
            free.wait(30)
            store.write_result(pretended(name, before=0.125))

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(30)
    threading.Timer(1.0, free.set).start()
    board, _, executor = driven(CELLS[:1], tmp_path, {"search": [{"state": "busy"}]})
    thread.join()
    assert executor.ran[name] == 1
    assert board.results[name].before == 0.125
    assert states(board) == ["done"]


def test_a_stage_that_another_driver_left_is_taken_over(tmp_path):
    board, _, executor = driven(CELLS[:1], tmp_path, {"search": [{"state": "busy"}, {}]})
    assert executor.ran[INFOS[0].search] == 2
    assert states(board) == ["done"]


class Slow(Here):
    """Finish the first stage, and none after it."""

    asked = False

    def submit(self, fn, /, task):
        if self.ran:
            if not self.asked:
                os.kill(os.getpid(), signal.SIGTERM)
            self.asked = True
            return Future()
        return super().submit(fn, task)

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.cancelled = cancel_futures


def test_a_signal_stops_and_keeps_what_is_done(tmp_path):
    store = StageStore(tmp_path)
    store.make()
    board, view, executor = Board.of("tried", CELLS, store), Seen(), Slow(store)
    began = time.monotonic()
    with pytest.raises(Stopped, match=r"stopped by SIGTERM; .* 11 stages left: the same command"):
        Driver(board, store, view).run(executor, 2)
    assert time.monotonic() - began < 5
    assert executor.cancelled
    assert view.closed
    assert len(board.results) == 1


def test_a_result_that_cannot_be_read_is_one_failure(tmp_path):
    driven(CELLS, tmp_path)
    file = StageStore(tmp_path).folder(INFOS[0].finetune).path / "result.json"
    file.write_text('{"stage": 3}')
    status = Status.of("", INFOS, StageStore(tmp_path))
    assert status.states == {"done": 3, "partial": 0, "failed": 1, "missing": 0}
    [(reason, count)] = status.problems().items()
    assert "holds no result" in reason
    assert count == 1


# --- status and estimates ---


def test_the_status_counts_cells_and_stages(tmp_path):
    failed = {"state": "failed", "reason": "no"}
    driven(CELLS[:2], tmp_path, {"shuffle": [failed]})
    StageStore(tmp_path).write_failure(INFOS[0].checks["shuffle"], "no")
    status = Status.of("", INFOS, StageStore(tmp_path))
    assert status.states == {"done": 0, "partial": 1, "failed": 1, "missing": 2}
    assert status.stages == {"total": 12, "done": 4, "running": 0, "failed": 1}
    with StageStore(tmp_path).folder(INFOS[0].checks["shuffle"]).locked():
        assert Status.of("", INFOS, StageStore(tmp_path)).stages["running"] == 1


def test_the_time_left_is_that_of_stages_of_the_same_kind():
    estimate = Estimate(INFOS, {})
    assert estimate.seconds() is None
    names = [INFOS[0].search, INFOS[0].finetune, *INFOS[0].checks.values()]
    for name, seconds in zip(names, (10.0, 20.0, 30.0), strict=True):
        estimate.add(name, pretended(name, seconds=seconds))
    assert estimate.seconds() == 3 * 60
    estimate.add(INFOS[1].search, pretended(INFOS[1].search, seconds=100.0))  # another pruner
    assert estimate.seconds() == 3 * 50 + 10 + 100
    lost = pretended(INFOS[2].search, seconds=10.0, ticket=None)
    estimate.add(INFOS[2].search, lost)
    assert estimate.seconds() == 2 * 50 + 100, "nothing is trained of a network that collapsed"


def test_records_keep_the_contract(tmp_path):
    board, _, _ = driven(CELLS, tmp_path, {"shuffle": [{"before": 0.1, "after": 0.2}]})
    record = record_of("mine", INFOS[0], board.results, board.failures)
    expected = {
        "study": "mine",
        "variant": None,
        "pruner": "snip",
        "density": 0.05,
        "model": "conv4",
        "dataset": "fake",
        "seed": 0,
        "axes": {"seed": 0, "pruner": "snip"},
        "key": INFOS[0].search.partition("-")[2],
        "metric": "accuracy",
        "higher_is_better": True,
        "before": 0.25,
        "after": 0.75,
        "kept": 5,
        "prunable": 100,
        "controls": {"shuffle": {"before": 0.1, "after": 0.2}},
        "unmade": {},
        "measurements": {},
        "seconds": 4.0,
        "cpu_seconds": 2.0,
        "collapse": None,
        "state": "done",
        "ticket": f"stages/{INFOS[0].search}/ticket.safetensors",
    }
    assert {name: record[name] for name in expected} == expected
    others = {"config", "layers", "curves", "bound", "search_epochs"}
    assert others < record.keys()
    assert record["config"]["dataset"] == {"name": "fake", "samples": 60}


def test_records_become_a_data_frame_where_pandas_is_installed():
    records = Records([{"a": 1, "axes": {"seed": 0}}])
    pandas = pytest.importorskip("pandas")
    frame = records.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["a", "axes.seed"]


def test_records_say_how_to_get_pandas(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Exception, match="pip install pandas"):
        Records().to_pandas()


def test_a_stage_that_saves_is_tried_again_as_often_as_its_job_ends(tmp_path, monkeypatch):
    saved = iter(range(1, 100))
    monkeypatch.setattr(StageStore, "last_saved", lambda self, stage: next(saved))
    stopped = {"state": "stopped", "signal": 15}
    board, _, executor = driven(CELLS[:1], tmp_path, {"search": [stopped] * 5 + [{}]})
    assert states(board) == ["done"]
    assert executor.ran[INFOS[0].search] == 6


def test_a_damaged_result_of_another_driver_does_not_block_this_one(tmp_path):
    store, name = StageStore(tmp_path), INFOS[0].search
    driver = Driver(Board.of("", CELLS[:1], store), store, Seen())
    driver._elsewhere[name] = CELLS[0].stages[name]
    store.folder(name).path.mkdir(parents=True)
    (store.folder(name).path / "result.json").write_text('{"format": 2}')
    driver._look_elsewhere()
    assert "holds no result" in driver.board.failures[name]
    assert not driver._elsewhere
