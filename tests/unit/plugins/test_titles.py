"""A pruner is called by what it is, wherever runs and cells are listed."""

from pathlib import Path

import pytest
from cli_runs import TINY, answer, commands_in
from studies import TINY as CELL
from studies import cells_of

from gemkit import load_plugins
from gemkit.plugins.titles import pruner_title
from gemkit.runs.recorded import run_records

REGISTRY = load_plugins(only=())


@pytest.mark.parametrize("pruner", sorted(REGISTRY.pruners))
def test_a_pruner_with_its_own_parts_is_called_by_its_name(pruner):
    assert pruner_title(REGISTRY.recipe(pruner).to_data(), REGISTRY) == pruner


@pytest.mark.parametrize(
    ("parts", "title"),
    [
        ({"scores": "grasp"}, "snip, scores grasp"),
        ({"scores": "grasp", "allocation": "erk"}, "snip, scores grasp, allocation erk"),
        ({"structure": "filters"}, "snip, structure filters"),
    ],
)
def test_replaced_parts_are_named(parts, title):
    assert pruner_title(REGISTRY.recipe("snip", parts=parts).to_data(), REGISTRY) == title


def test_a_part_that_is_missing_is_named_too():
    data = REGISTRY.recipe("rigl").to_data()
    del data["grow"]
    assert pruner_title(data, REGISTRY) == "rigl, without grow"


@pytest.mark.parametrize(
    ("recipe", "title"),
    [
        (None, None),
        ([], None),
        ({}, None),
        ({"pruner": 3}, None),
        ({"pruner": "gone"}, "gone"),
        ({"pruner": "snip"}, "snip"),
    ],
)
def test_damaged_and_unknown_recipes_are_no_errors(recipe, title):
    assert pruner_title(recipe, REGISTRY) == title


def test_runs_reports_and_studies_use_the_title(tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    words = ("run", "--pruner", "snip", "--scores", "magnitude", *TINY)
    answer(gemkit(*words, "--out", "runs/one", "--json"))
    [listed] = answer(gemkit("runs", "--json"))["runs"]
    assert listed["pruner"] == "snip, scores magnitude"
    assert "snip, scores magnitude" in gemkit("runs").stdout
    [record] = run_records(Path("runs"))
    assert record["pruner"] == "snip, scores magnitude"
    recipe = {"recipe": {"scores": {"name": "grasp"}}}
    [cell] = cells_of(CELL | {"pruner": "snip", "density": 0.3} | recipe)
    assert cell.info.pruner == "snip, scores grasp"
    assert {stage.label for stage in cell.stages.values()} == {"snip, scores grasp 0.3 s0"}
