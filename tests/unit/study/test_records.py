"""Records of cells: what they cost, and how they are gathered over seeds."""

from studies import TINY, cells_of, driven, pretended

from gemkit.report.records import records_from
from gemkit.study.records import record_of


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
