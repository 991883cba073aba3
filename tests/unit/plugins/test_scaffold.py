"""`gemkit new-plugin` creates a complete, working package, or nothing."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from cli_runs import TINY, answer, commands_in

from gemkit.plugins import scaffold

ROOT = Path(__file__).parents[3]


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    return commands_in(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["my-idea", "gemkit-my-idea", "my_idea"])
def test_a_new_plugin_is_complete(name, gemkit, tmp_path):
    result = gemkit("new-plugin", name)
    assert result.exit_code == 0, result.stderr
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        "gemkit-my-idea/pyproject.toml",
        "gemkit-my-idea/README.md",
        "gemkit-my-idea/gemkit_my_idea.py",
        "gemkit-my-idea/tests/test_gemkit_my_idea.py",
    }
    project = tomllib.loads((tmp_path / "gemkit-my-idea" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "gemkit-my-idea"
    assert project["project"]["entry-points"] == {"gemkit": {"my_idea": "gemkit_my_idea"}}
    assert "gemkit run --pruner my_idea" in result.stdout
    assert not any("${" in path.read_text() for path in tmp_path.rglob("*.*") if path.is_file())


def test_a_new_plugin_prunes(gemkit):
    gemkit("new-plugin", "my-idea")
    file = "gemkit-my-idea/gemkit_my_idea.py"
    found = answer(gemkit("run", "--plugin", file, "--pruner", "my_idea", "--json", *TINY))
    assert found["pruner"] == "my_idea"
    assert "my_idea" in gemkit("parts", "scores", "--plugin", file).stdout


def test_the_folder_can_be_chosen(gemkit, tmp_path):
    (tmp_path / "else where").mkdir()
    result = gemkit("new-plugin", "mine", "--dir", "else where")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "else where" / "gemkit-mine" / "gemkit_mine.py").is_file()
    assert "pip install -e 'else where/gemkit-mine'" in result.stdout


REFUSED = {
    "My-Idea": "cannot name a plugin",
    "1st": "cannot name a plugin",
    "gemkit-": "cannot name a plugin",
    "mine-": "cannot name a plugin",
    "../mine": "cannot name a plugin",
    "class": "cannot name a plugin",
    "wanted": "the name of one it imports",
    "magnitude": "the scores 'magnitude' exists already (built into gemkit)",
    "gem-miner": "the pruner 'gem_miner' exists already (built into gemkit)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_name_is_refused(name, gemkit, tmp_path):
    result = gemkit("new-plugin", name)
    assert result.exit_code == 2
    assert REFUSED[name] in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_changed(gemkit, tmp_path):
    (tmp_path / "gemkit-mine").mkdir()
    result = gemkit("new-plugin", "mine")
    assert result.exit_code == 2
    assert "gemkit-mine exists already" in result.stderr
    assert list((tmp_path / "gemkit-mine").iterdir()) == []


def test_a_missing_folder_is_refused(gemkit):
    result = gemkit("new-plugin", "mine", "--dir", "nowhere")
    assert result.exit_code == 2
    assert "there is no directory nowhere" in result.stderr


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    from gemkit import load_plugins

    def failing(template, words):
        if template == "test.py":
            raise OSError("the disk is full")
        return "text"

    monkeypatch.setattr(scaffold, "_filled", failing)
    with pytest.raises(OSError, match="disk is full"):
        scaffold.new_plugin("mine", tmp_path, load_plugins(only=()))
    assert list(tmp_path.iterdir()) == []


def test_the_wheel_contains_the_templates(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    own = {str(path.relative_to(ROOT)) for path in (ROOT / "gemkit").rglob("*.template")}
    assert len(own) == len(scaffold.FILES)
    assert own <= names
    assert "gemkit/testing/clauses/scores.py" in names
    assert not any(name.startswith(("plugins", "tests", "scripts")) for name in names)


def test_a_new_plugin_works_when_installed():
    """Install gemkit, a new plugin and all of plugins/, and run them."""
    done = subprocess.run(
        [str(ROOT / "tests" / "new_plugin.sh")],
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"pruner": "from_nothing"' in done.stdout
    assert "from_nothing (gemkit-from-nothing 0.1.0): scores from_nothing" in done.stdout
    for folder in sorted((ROOT / "plugins").iterdir()):
        assert f"({folder.name} " in done.stdout
    assert "refused" not in done.stdout
