"""The pages for plugin authors: every block of code is run, compared or counted."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from cli_runs import TINY, commands_in

from docs.tools import reference
from docs.tools.source import annotations, methods, names_in, signature
from docs.tools.types import EXAMPLES, GIVEN, OF_KINDS
from gemkit import load_plugins
from gemkit.core.events import Event
from gemkit.parts.part import Part
from gemkit.parts.scores import LearnedScores
from gemkit.plugins import hookspecs
from gemkit.plugins.registry import KINDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text()
TESTING = (DOCS / "testing-plugins.md").read_text()
BLOCK = re.compile(r"(?:<!-- ([^\n]*) -->\n)?```(\w+)\n(.*?)```", flags=re.DOTALL)
COPIED = re.compile(r"(\S+) as (\S+)")


def blocks(page, language):
    return [(note, code) for note, found, code in BLOCK.findall(page) if found == language]


def test_the_tutorial_shows_the_example_plugin_as_it_is():
    shown = [note for note, _ in blocks(TUTORIAL, "python") if COPIED.fullmatch(note)]
    assert len(shown) == 2
    for note, code in blocks(TUTORIAL, "python"):
        if match := COPIED.fullmatch(note):
            assert code == (ROOT / match[1]).read_text()


@pytest.mark.parametrize(("name", "most"), [("sensitivity", 40), ("power", 60)])
def test_the_lines_of_a_plugin_are_counted(name, most):
    [stated] = re.findall(rf"`{name}\.py`, complete in (\d+) lines", TUTORIAL)
    file = ROOT / "plugins" / "gemkit-example" / "gemkit_example" / f"{name}.py"
    assert int(stated) == len(file.read_text().splitlines()) <= most


def test_the_tutorials_commands_run(tmp_path, monkeypatch):
    """Plugins of files are run; what needs an installation is left to tests/new_plugin.sh."""
    gemkit = commands_in(tmp_path, monkeypatch)
    for note, code in blocks(TUTORIAL, "python"):
        if match := COPIED.fullmatch(note):
            (tmp_path / match[2]).write_text(code)
    ran, where = 0, tmp_path
    for line in "".join(code for _, code in blocks(TUTORIAL, "sh")).splitlines():
        program, *words = shlex.split(line)
        installed = {"gemkit-my-idea", "my_idea", "plugins"} & set(words)
        if program == "gemkit" and not installed:
            small = TINY if words[0] == "run" else ()
            result = gemkit(*words, *small, *(["--on-collapse", "warn"] if small else []))
            assert result.exit_code == 0, line + result.stderr
            ran += 1
        elif program == "python":
            subprocess.run([sys.executable, *words], cwd=where, check=True, capture_output=True)
            ran += 1
        elif program == "cd":
            where /= words[0]
        else:
            assert program in {"gemkit", "pip"}, line
    assert ran == 10
    assert len(list((tmp_path / "gemkit-my-idea" / "dist").iterdir())) == 2
    for note, _, code in BLOCK.findall(TUTORIAL):
        if note.startswith("in "):
            assert code in (tmp_path / note.removeprefix("in ")).read_text()


def test_the_page_on_testing_tests(tmp_path):
    """Its blocks are a test file that passes."""
    code = "\n\n".join(code for _, code in blocks(TESTING, "python"))
    (tmp_path / "test_page.py").write_text(code)
    words = ["-m", "pytest", "-v", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *words, "-c", str(ROOT / "pyproject.toml"), "test_page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [case] = re.findall(r"`(test_sensitivity\[[^`]+\])`", TESTING)
    assert f"{case} PASSED" in done.stdout


def test_the_reference_is_up_to_date():
    """Where it is not: python -m docs.tools.reference docs/reference.md."""
    assert (DOCS / "reference.md").read_text() == reference.reference(load_plugins(only=()))


def test_the_command_writes_the_reference(tmp_path):
    page = tmp_path / "page.md"
    reference.main([str(page)])
    assert page.read_text() == (DOCS / "reference.md").read_text()


def test_the_reference_names_every_hook_kind_and_part():
    page, registry = (DOCS / "reference.md").read_text(), load_plugins(only=())
    hooks = [name for name in vars(hookspecs) if name.startswith("gemkit_")]
    kinds = [kind.base.__name__ for kind in KINDS.values()] + ["MeasuredScores", "LearnedScores"]
    names = [name for entries in registry.parts.values() for name in entries]
    for name in [*hooks, *kinds]:
        assert f"### `{name}`" in page
    for name in [*names, *registry.pruners]:
        assert f"* **`{name}`** – " in page


# --- types ---------------------------------------------------------------------------------------

PLAIN = {"Any", "Callable", "ClassVar", "Executor", "Generator", "Literal", "Module", "Path"} | {
    "Tensor"
}
"""Names that need no explanation here: those of Python and torch."""


def mentioned(base):
    """Return the types that the public attributes and signatures of a class mention."""
    texts = list(annotations(base).values())
    for name, function, _ in methods(base):
        arguments, _, answer = signature(name, function).removeprefix(f"def {name}").partition("->")
        lines = ast.parse(f"def f{arguments} -> {answer or None}: ...").body[0]
        notes = [one.annotation for one in (*lines.args.args, *lines.args.kwonlyargs)]
        texts += [ast.unparse(note) for note in (*notes, lines.returns) if note is not None]
    return {name for text in texts for name in names_in(text) if name[0].isupper()} - PLAIN


BASES = [Part, LearnedScores, *(kind.base for kind in KINDS.values())]


def test_types_are_found_in_signatures():
    """Otherwise the next test would find nothing to miss."""
    everything = set().union(*map(mentioned, BASES))
    assert {"Probe", "Wanted", "Now", "Shares", "Freeze", "Batch", "Data", "Event"} <= everything
    assert {"CheckContext", "Ticket", "Tensors", "Expected"} <= everything


@pytest.mark.parametrize("base", BASES)
def test_the_reference_explains_every_type_that_a_kind_mentions(base):
    page = (DOCS / "reference.md").read_text()
    for name in mentioned(base):
        assert f"### `{name}`\n" in page, f"add {name} to docs/tools/types.py"


def test_the_reference_explains_what_a_run_is_given():
    named = {given.name for given in GIVEN}
    assert {"View", "TicketInfo", "Source", "Plan", "Runtime", "RunConfig"} <= named
    events = {event.__name__ for event in get_args(Event)}
    data = {"Layer", "FreezeRecord", "RunSettings", "Expected", "Targets"}
    assert {given.name for given in GIVEN if given.example is None} == events | data


SHOWN = OF_KINDS | {given.name: given.example for given in GIVEN if given.example}


def test_every_example_has_a_place_in_the_reference():
    shown = set(SHOWN.values())
    assert {file.stem for file in EXAMPLES.iterdir() if file.suffix == ".py"} == shown


@pytest.mark.parametrize(("name", "example"), sorted(SHOWN.items()))
def test_the_examples_of_the_reference_run(name, example, tmp_path, monkeypatch):
    page = (DOCS / "reference.md").read_text()
    section = page.partition(f"### `{name}`\n")[2].partition("\n### ")[0]
    code = blocks(section, "python")[-1][1]
    assert "assert " in code
    assert code.strip() in (EXAMPLES / f"{example}.py").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMKIT_PLUGINS", "")
    exec(compile(code, f"{example}.py", "exec"), {"__name__": "__main__"})
    assert not list(tmp_path.iterdir())
