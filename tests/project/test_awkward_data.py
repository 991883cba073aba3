"""Awkward data objects work, or are refused in one sentence; the page says which."""

from pathlib import Path

import pytest

from docs.tools import awkward
from docs.tools.awkward_data import DATA

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
TABLE = PAGE.partition(f"<!-- results: {awkward.NAME_OF_DATA} -->")[2].partition("<!-- end of")[0]
ROWS = dict(line.strip("| ").split(" | ", 1) for line in TABLE.strip().splitlines()[2:])
TITLES = {make.__name__: (make.__doc__ or "").rstrip(".") for make in DATA}


def test_the_page_has_every_data_object():
    """Where it does not: python -m docs.tools.awkward docs/data.md."""
    assert list(ROWS) == list(TITLES.values())
    assert len(ROWS) >= 25


@pytest.mark.parametrize("make", DATA, ids=TITLES)
def test_a_data_object_does_what_the_page_says(make):
    found = awkward.outcome_of_data(make)
    assert found.replace("|", "&#124;") == ROWS[TITLES[make.__name__]]
    assert "Traceback" not in found
