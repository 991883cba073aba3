"""Help answers at once: nothing heavy is imported before a command needs it."""

import os
import subprocess
import sys
from typing import get_args

import click
import pytest

from gemkit import plan, recipe
from gemkit.cli import (
    machine_options,
    main,
    output_options,
    recipe_options,
    training_options,
)
from gemkit.collapse import CollapsePolicy
from gemkit.keeping import DiskKeeper

HEAVY = {
    *("torch", "torchvision", "torchmetrics", "lightning_fabric", "lightning_utilities", "timm"),
    *("pydantic", "numpy", "safetensors", "rich", "pluggy", "gemkit.engine", "gemkit.plugins"),
}

HELP = """
import sys
from gemkit.cli import main

for words in {words!r}:
    try:
        main(words)
    except SystemExit as end:
        assert end.code == 0, words
print("HEAVY", sorted({heavy!r} & set(sys.modules)))
"""


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[list[str]]:
    """List every command below a group as words."""
    found = [list(path)]
    for name, command in group.commands.items():
        inner = (*path, name)
        found += commands(command, inner) if isinstance(command, click.Group) else [list(inner)]
    return found


def python(code: str, **settings) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", code]
    return subprocess.run(words, text=True, check=False, timeout=60, **settings)


def last_line(code: str, **settings) -> str:
    done = python(code, stdout=subprocess.PIPE, **settings)
    assert done.returncode == 0
    return done.stdout.splitlines()[-1]


def test_help_and_version_import_nothing_heavy():
    words = [[*path, "--help"] for path in commands(main)] + [["--version"]]
    assert len(words) > 8
    assert last_line(HELP.format(words=words, heavy=HEAVY)) == "HEAVY []"


def test_the_package_runs_as_a_program_of_the_same_name_and_as_quickly():
    code = f"""
import runpy, sys
sys.argv = ["somewhere/__main__.py", "run", "--help"]
try:
    runpy.run_module("gemkit", run_name="__main__", alter_sys=True)
except SystemExit as end:
    print(end.code, sorted({HEAVY!r} & set(sys.modules)))
"""
    done = python(code, stdout=subprocess.PIPE)
    assert done.stdout.startswith("Usage: gemkit run ")
    assert done.stdout.splitlines()[-1] == "0 []"


def test_something_heavy_would_be_noticed():
    code = "import gemkit.plan" + HELP.format(words=[], heavy=HEAVY)
    assert "pydantic" in last_line(code)


@pytest.mark.parametrize(
    ("line", "offered"), [("gemkit run --prec", "--precision"), ("gemkit tick", "ticket")]
)
def test_completion_imports_nothing_heavy(line, offered):
    environment = {
        **os.environ,
        "_GEMKIT_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    code = f"""
import sys
from gemkit.cli import main
try:
    main(prog_name="gemkit")
except SystemExit:
    print(sorted({HEAVY!r} & set(sys.modules)))
"""
    done = python(code, stdout=subprocess.PIPE, env=environment)
    assert done.stdout.splitlines() == [f"plain,{offered}", "[]"]


def test_a_reader_that_leaves_early_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    code = "from gemkit.cli import main; main(['--help'])"
    done = python(code, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert done.stderr == ""


@pytest.mark.parametrize(("given", "kept"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_sleep_unless_told_otherwise(given, kept):
    environment = {name: text for name, text in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if given:
        environment["OMP_WAIT_POLICY"] = given
    code = """
import os
from gemkit.cli import main
try:
    main(["--version"])
finally:
    print(os.environ["OMP_WAIT_POLICY"])
"""
    assert last_line(code, env=environment) == kept


# Written out for the help, where importing their home would take seconds.
def test_choices_and_defaults_in_the_help_are_the_real_ones():
    runtime, training = plan.Runtime.model_fields, plan.Plan.model_fields
    assert get_args(runtime["device"].annotation) == machine_options.DEVICES
    assert get_args(runtime["precision"].annotation) == machine_options.PRECISIONS
    assert get_args(CollapsePolicy) == training_options.POLICIES
    assert get_args(plan.Plan.model_fields["on_nan"].annotation) == training_options.ON_NAN
    assert DiskKeeper.__init__.__kwdefaults__["minutes"] == output_options.CHECKPOINT_MINUTES
    assert list(recipe.ROLES) == list(recipe_options.ROLES)
    assert training["epochs"].default == training_options.EPOCHS
    assert training["batch_size"].default == training_options.BATCH_SIZE
    defaults = {one.name: one.default for one in main.commands["run"].params}
    for field in ("device", "devices", "precision"):
        assert defaults[field] == runtime[field].default


@pytest.mark.parametrize("path", commands(main), ids=" ".join)
def test_every_command_and_option_explains_itself(path):
    command: click.Command = main
    for name in path:
        command = command.commands[name]
    assert command.help
    for parameter in command.params:
        assert isinstance(parameter, click.Argument) or parameter.help
