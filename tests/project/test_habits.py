"""What is written down twice agrees: versions, test commands, hooks, lower bounds."""

import subprocess
import sys
import tomllib
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from versions import bounds, requirements

import gemkit

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, PYTEST = SETTINGS["project"], SETTINGS["tool"]["pytest"]["ini_options"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
[HOOKS] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]


def python(*words, **options):
    """Run Python, and fail with what it printed."""
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- the version ----------------------------------------------------------------------------------


def test_the_version_comes_from_the_installed_package():
    assert gemkit.__version__ == version("gemkit")
    assert "__version__ =" not in (ROOT / "gemkit" / "__init__.py").read_text()


def test_the_installed_package_is_this_one():
    """Where it is not: pip install -e '.[test]' again."""
    assert version("gemkit") == PROJECT["version"]


def test_importing_gemkit_does_not_read_the_version():
    code = "import gemkit, sys; print('importlib.metadata' in sys.modules)"
    assert python("-S", "-c", code, cwd=ROOT).strip() == "False"


def test_the_citation_names_this_version_and_the_paper():
    assert str(CITATION["version"]) == PROJECT["version"]
    assert CITATION["license"] == PROJECT["license"]
    [paper] = CITATION["references"]
    assert paper["title"] == "Rare Gems: Finding Lottery Tickets at Initialization"
    assert len(paper["authors"]) == 9


def test_the_changelog_has_this_version_below_what_is_unreleased():
    heads = [line.split()[1:] for line in CHANGELOG.splitlines() if line.startswith("## ")]
    assert heads[0] == ["[Unreleased]"]
    assert heads[1] == [f"[{PROJECT['version']}]", "-", str(CITATION["date-released"])]
    dates = [date.fromisoformat(day) for _, _, day in heads[1:]]
    assert dates == sorted(dates, reverse=True)


# --- the same commands everywhere -----------------------------------------------------------------


def steps(job):
    return [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def test_the_workflow_runs_what_ci_runs_on_every_python_of_the_classifiers():
    assert steps("newest") == [".ci/run"]
    prefix = "Programming Language :: Python :: "
    supported = [name.removeprefix(prefix) for name in PROJECT["classifiers"] if prefix in name]
    assert WORKFLOW["jobs"]["newest"]["strategy"]["matrix"]["python"] == supported


def test_the_workflow_runs_the_oldest_releases_on_the_oldest_python():
    assert steps("oldest") == ["python tests/versions.py oldest -n auto"]
    *_, setup, _ = WORKFLOW["jobs"]["oldest"]["steps"]
    assert f">={setup['with']['python-version']}" == PROJECT["requires-python"]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_pages_test_on_all_cores(page):
    assert "python -m pytest -n auto" in (ROOT / page).read_text()


def test_plain_pytest_runs_in_one_process():
    """Otherwise `breakpoint()` and `-s` do nothing."""
    assert not [word for word in PYTEST["addopts"].split() if word.startswith(("-n", "--num"))]


# --- pre-commit -----------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS["hooks"], ids=lambda hook: hook["id"])
def test_a_hook_stops_a_commit_and_passes_clean_files(hook, tmp_path):
    """It stops one with an error, or by changing the file."""
    file = tmp_path / "part.py"
    program, *words = hook["entry"].split()
    assert program == "python"
    file.write_text("x = 1\n")
    python(*words, "--isolated", str(file))
    unclean = "import os\nx  =  1\n"
    file.write_text(unclean)
    done = subprocess.run(
        [sys.executable, *words, "--isolated", file], capture_output=True, check=False
    )
    assert done.returncode != 0 or file.read_text() != unclean


# --- lower bounds ---------------------------------------------------------------------------------


def test_every_requirement_has_a_lower_bound_that_can_be_installed():
    found = bounds(PROJECT)
    assert {"torch", "matplotlib", "pytest"} <= set(found)
    assert f"torch=={found['torch']}" in requirements("oldest", PROJECT)
    assert requirements("newest", PROJECT) == []


def test_a_requirement_without_a_lower_bound_would_be_noticed():
    project = {"name": "other", "dependencies": ["torch<3"], "optional-dependencies": {}}
    with pytest.raises(ValueError, match="length 1; 2 is required"):
        bounds(project)


def test_the_page_on_dependencies_names_every_one():
    page = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text()
    missing = [name for name in bounds(PROJECT) if name not in page.lower()]
    assert missing == []
