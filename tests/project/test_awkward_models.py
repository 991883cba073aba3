"""Awkward models work, or are refused in one sentence, from Python and the command line."""

from pathlib import Path

import pytest
from cli_runs import commands_in

from docs.tools import awkward
from docs.tools.awkward_models import MODELS
from gemkit.report.pages import with_results

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
TABLE = PAGE.partition(f"<!-- results: {awkward.NAME} -->")[2].partition("<!-- end of")[0]
ROWS = dict(line.strip("| ").split(" | ", 1) for line in TABLE.strip().splitlines()[2:])
TITLES = {build.__name__: (build.__doc__ or "").rstrip(".") for build in MODELS}


def test_the_page_has_every_model():
    """Where it does not: python -m docs.tools.awkward docs/models.md."""
    assert list(ROWS) == list(TITLES.values())
    assert len(ROWS) >= 25
    assert with_results(PAGE, awkward.NAME, "") != PAGE


@pytest.mark.parametrize("build", MODELS, ids=TITLES)
def test_a_model_does_from_python_what_the_page_says(build):
    assert awkward.outcome(build).replace("|", "&#124;") == ROWS[TITLES[build.__name__]]


@pytest.mark.parametrize("build", MODELS, ids=TITLES)
def test_a_model_works_from_the_command_line_if_it_does_from_python(build, tmp_path, monkeypatch):
    done = commands_in(tmp_path, monkeypatch)(
        *("run", "--pruner", "snip", "--model", f"docs.tools.awkward_models:{build.__name__}"),
        *("--dataset", "fake", "-o", "dataset.samples=60", "--density", "0.5", "--device", "cpu"),
        *("--finetune-epochs", "1", "--batch-size", "16"),
    )
    outcome = ROWS[TITLES[build.__name__]]
    works, collapses = outcome.startswith("works"), outcome.startswith("refused: collapse")
    assert done.exit_code == (0 if works else 3 if collapses else 2), done.output
    assert "Traceback" not in done.output
    if not works:
        lines = [line for line in done.stderr.splitlines() if line.startswith("gemkit: ")]
        assert len(lines) <= 1
