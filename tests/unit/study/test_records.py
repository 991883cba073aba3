"""Records of cells: what they cost, and how they are gathered over seeds."""

from studies import REGISTRY, TINY, cells_of, driven, pretended

from gemkit.report.records import records_from
from gemkit.study.cell import make_cells
from gemkit.study.grid import grid_from
from gemkit.study.records import groups_of, record_of
from gemkit.study.view import group_table


def records_in(cells, folder, script=None):
    board, _, _ = driven(cells, folder, script)
    return [record_of("", cell, board.results, board.failures) for cell in board.cells]


# --- cost -----------------------------------------------------------------------------------------


def test_controls_are_no_part_of_the_cost(tmp_path):
    for number, checks in enumerate([(), ("shuffle", "permute")]):
        [one] = records_in(cells_of(TINY, checks=checks), tmp_path / str(number))
        assert (one["seconds"], one["cpu_seconds"]) == (4.0, 2.0), "search and fine-tuning"


def test_the_cost_is_open_until_both_phases_are_there():
    [cell] = cells_of(TINY)
    search = {cell.info.search: pretended(cell.info.search)}
    made = [record_of("", cell.info, results, {}) for results in ({}, search)]
    assert [one["seconds"] for one in made] == [None, None]
    assert [one.cpu_seconds for one in records_from(made)] == [None, None]


def test_a_long_error_does_not_block_a_report():
    [cell] = cells_of(TINY)
    made = record_of("", cell.info, {}, {cell.info.search: "why " * 25_000})
    [one] = records_from([made])
    assert one.state == "failed"
    assert one.problem.startswith("why why")


# --- groups ---------------------------------------------------------------------------------------


def cells_without_axes(*changes):
    """Return the cells of a list of configurations with two seeds each, as `Study([...])` does."""
    points = [
        point
        for own in changes
        for seed in range(2)
        for point in grid_from({"base": {**TINY, **own, "seed": seed}}).points()
    ]
    return make_cells(REGISTRY, points, (), data_dir=None)


def test_other_configurations_are_not_pooled_without_axes(tmp_path):
    changes = [{"finetune": {"lr": lr}} for lr in (0.1, 0.01, 0.001)]
    records = records_in(cells_without_axes(*changes), tmp_path)
    groups = groups_of(records)
    assert [[one["seed"] for one in own] for own in groups.values()] == [[0, 1]] * 3
    head, *rows = group_table(records).splitlines()
    assert head.split() == ["pruner", "density", "lr", "seeds", "before", "after"]
    assert [row.split()[2:4] for row in rows] == [[lr, "2/2"] for lr in ("0.1", "0.01", "0.001")]


def test_settings_with_the_same_last_word_are_named_in_full(tmp_path):
    changes = [{"finetune": {"lr": 0.1}}, {"search": TINY["search"] | {"lr": 0.2}}]
    changes += [{**changes[0], **changes[1]}]
    head, *rows = group_table(records_in(cells_without_axes(*changes), tmp_path)).splitlines()
    assert {"search.lr", "finetune.lr"} <= set(head.split())
    assert len(rows) == 3
