"""What a search would refuse is refused before the folder of a run exists."""

import pytest
from cli_runs import TINY, commands_in

REFUSED = {
    "--pruner magnitude --structure rows": "choose allocation 'uniform' or 'erk'",
    "--pruner gradual_magnitude --structure filters --on-collapse keep-one": (
        "'keep-one' keeps single weights, which structure 'filters' does not"
    ),
    "--pruner rigl --on-collapse keep-one": "does not suit a recipe in which weights return",
    "--pruner magnitude --structure filters --allocation uniform --density 0.001": (
        "of one unit of structure 'filters'; raise the density, choose allocation 'global'"
    ),
    "--pruner magnitude --density 1e-7": "prunable weights; it must be at least",
    "--pruner magnitude -o prunable.skip=['nowhere.*']": "'nowhere.*' matches no weight",
}


@pytest.mark.parametrize("words", REFUSED)
def test_nothing_is_written_for_a_run_that_cannot_work(words, tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    result = gemkit("run", *TINY, *words.split())
    assert result.exit_code == 2, result.output
    assert REFUSED[words] in result.stderr
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())
