"""`gemkit check-plugin`: its report and its exit code."""

import json
import subprocess
import sys

import pytest
from cli_runs import commands_in

SOUND = '''
from gemkit import MeasuredScores, hookimpl


class Size(MeasuredScores):
    """The magnitude of a weight."""

    name = "{name}"

    def importance(self, probe):
        return {{name: weight.abs() for name, weight in probe.weights.items()}}


@hookimpl
def gemkit_scores():
    return [Size]
'''


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    return commands_in(tmp_path, monkeypatch)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a distribution with one plugin."""

    def installed(distribution, plugin, code):
        site = tmp_path / f"site-{plugin}"
        info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"checked_{plugin}.py").write_text(code)
        (info / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[gemkit]\n{plugin} = checked_{plugin}\n")
        monkeypatch.syspath_prepend(site)

    yield installed
    for name in [name for name in sys.modules if name.startswith("checked_")]:
        del sys.modules[name]


def test_a_valid_file_conforms(gemkit, tmp_path):
    file = tmp_path / "size.py"
    file.write_text(SOUND.format(name="size"))
    result = gemkit("check-plugin", file)
    assert result.exit_code == 0
    assert result.stdout.startswith("Size\n  holds ")
    assert "BROKEN" not in result.stdout
    assert result.stdout.endswith("It conforms.\n")


@pytest.mark.parametrize("name", ["gemkit-size", "Gemkit_Size", "size"])
def test_a_plugin_is_found_by_distribution_or_entry_point(name, gemkit, install):
    install("gemkit-size", "size", SOUND.format(name="size"))
    install("gemkit-other", "other", SOUND.format(name="other_size"))
    result = gemkit("check-plugin", name, "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["conforms"] is True
    assert {clause["thing"] for clause in answer["clauses"]} == {"Size"}


def test_a_refused_plugin_does_not_conform(gemkit, install):
    install("gemkit-bad", "bad", "import no_such_module")
    result = gemkit("check-plugin", "bad")
    assert result.exit_code == 1
    assert "refused: plugin 'bad' (gemkit-bad 1.0)" in result.stdout
    assert result.stdout.endswith("It does not conform.\n")


def test_a_file_with_a_fault_does_not_conform(gemkit, tmp_path):
    (tmp_path / "bad.py").write_text("x = 1")
    result = gemkit("check-plugin", "bad.py")
    assert result.exit_code == 1
    assert "refused: plugin 'bad'" in result.stdout


def test_a_contested_name_does_not_conform(gemkit, install):
    install("gemkit-one", "one", SOUND.format(name="size"))
    install("gemkit-two", "two", SOUND.format(name="size"))
    result = gemkit("check-plugin", "one")
    assert result.exit_code == 1
    assert "'size' is claimed" in result.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [("no.py", "there is no file no.py"), ("gemkit-siz", "did you mean 'gemkit-size'")],
)
def test_an_unknown_plugin_is_a_users_mistake(name, words, gemkit, install):
    install("gemkit-size", "size", SOUND.format(name="size"))
    result = gemkit("check-plugin", name)
    assert result.exit_code == 2
    assert words in result.stderr


DATA = '''
import torch
from gemkit import Data, DatasetPart, hookimpl
from gemkit.core.errors import DataError


class Numbers(DatasetPart):
    """Images of numbers in a file."""

    name = "numbers"

    def load(self, folder):
        file = folder / "numbers.txt"
        if not file.exists():
            raise DataError(f"there is no {file}")
        images = torch.tensor([float(word) for word in file.read_text().split()]).view(-1, 1, 2, 2)
        pair = (images, torch.arange(len(images)) % 2)
        return Data.of_tensors(train=pair, validation=pair, test=pair, classes=2)


@hookimpl
def gemkit_datasets():
    return [Numbers]
'''


def test_clauses_that_need_files_are_not_reported_as_kept(gemkit, tmp_path):
    (tmp_path / "mine.py").write_text(DATA)
    result = gemkit("check-plugin", "mine.py")
    assert result.exit_code == 0
    [line] = [line for line in result.stdout.splitlines() if "not tried  " in line]
    assert line.startswith(
        "  not tried  3 promises: it needs files (there is no DIR/numbers.txt); "
    )
    assert line.endswith("--data-dir DIR")
    assert result.stdout.count("  holds ") == 4
    assert result.stdout.endswith("\nIt conforms, but 3 promises were not tried.\n")
    report = json.loads(gemkit("check-plugin", "mine.py", "--json").stdout)
    assert (report["conforms"], report["not_tried"]) == (True, 3)


def test_files_are_found_in_the_given_folder(gemkit, tmp_path):
    (tmp_path / "mine.py").write_text(DATA)
    (tmp_path / "numbers.txt").write_text("0 1 2 3 " * 8)
    result = gemkit("check-plugin", "mine.py", "--data-dir", tmp_path)
    assert result.stdout.count("  holds ") == 7
    assert result.stdout.endswith("\nIt conforms.\n")
    (tmp_path / "numbers.txt").unlink()
    result = gemkit("check-plugin", "mine.py", "--data-dir", tmp_path)
    assert result.exit_code == 1
    assert f"it raised DataError: there is no {tmp_path}/numbers.txt" in result.stdout


def test_a_part_that_cannot_be_built_does_not_conform(gemkit, tmp_path):
    needs = "    size: int = Field(description='must be given')"
    code = SOUND.format(name="size").replace("    name =", f"{needs}\n    name =")
    (tmp_path / "size.py").write_text(f"from pydantic import Field\n{code}")
    result = gemkit("check-plugin", "size.py")
    assert result.exit_code == 1
    assert "  BROKEN  Required fields have examples" in result.stdout
    assert "contract(Size(size=...))" in result.stdout
    assert "holds" not in result.stdout


def test_a_part_that_refuses_its_own_examples_does_not_conform(gemkit, tmp_path):
    own = "    size: int = Field(le=1, examples=[7], description='one at most')"
    code = SOUND.format(name="size").replace("    name =", f"{own}\n    name =")
    (tmp_path / "size.py").write_text(f"from pydantic import Field\n{code}")
    result = gemkit("check-plugin", "size.py")
    assert result.exit_code == 1, result.output
    assert "  BROKEN  Required fields have examples" in result.stdout
    assert "its own examples (size.size = 7: should be less than or equal to 1)" in result.stdout
    assert "contract(Size(size=...))" in result.stdout


def test_known_names_are_listed_once(gemkit, install):
    install("size", "size", SOUND.format(name="size"))
    result = gemkit("check-plugin", "xyz")
    assert result.stderr.count("size") == 1


def test_without_hypothesis_the_kit_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from importlib import util; found = util.find_spec\n"
        "util.find_spec = lambda name: None if name == 'hypothesis' else found(name)\n"
        "from gemkit.cli import main\n"
        "main(['check-plugin', 'mine.py'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "gemkit: gemkit.testing needs hypothesis; install with pip install 'gemkit[test]'\n"
    )
