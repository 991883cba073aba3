"""Help is fast: nothing heavy is imported before a command needs it."""

import os
import subprocess
import sys
from typing import get_args

import click
import pytest

from gemkit.cli import main, options
from gemkit.cli.program import COMMANDS
from gemkit.parts import recipe
from gemkit.training import plan
from gemkit.training.checkpointer import DiskCheckpointer
from gemkit.training.plan import CollapsePolicy

HEAVY = {
    *("torch", "torchvision", "torchmetrics", "lightning_fabric", "lightning_utilities", "timm"),
    *(
        "pydantic",
        "numpy",
        "safetensors",
        "rich",
        "pluggy",
        "gemkit.pruning.search",
        "gemkit.plugins.loader",
    ),
}

CONTEXT = click.Context(main)
RUN = main.get_command(CONTEXT, "run")

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
    for name in group.list_commands(CONTEXT):
        inner, command = (*path, name), group.get_command(CONTEXT, name)
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


LISTING = """
import sys, time
from gemkit.cli import main
{before}
try:
    main(["--help"])
except SystemExit:
    print(time.process_time(), *(name for name in sys.modules if name.startswith("gemkit.cli.")))
"""


def test_the_list_of_commands_imports_none_of_them_and_takes_little_time():
    done = [last_line(LISTING.format(before="")).split() for _ in range(3)]
    modules = {name.removeprefix("gemkit.cli.") for _, *names in done for name in names}
    assert "program" in modules
    assert not modules & {module for module, _, _ in COMMANDS.values()}
    assert min(float(seconds) for seconds, *_ in done) < 0.3, "seconds of the processor"


def test_a_list_that_imports_commands_would_be_noticed():
    loaded = LISTING.format(
        before="main.format_commands = lambda *_: main.get_command(_[0], 'run')"
    )
    assert "gemkit.cli.run" in last_line(loaded).split()


def test_every_command_has_the_name_and_help_of_the_table():
    for name, (_, _, text) in COMMANDS.items():
        command = main.get_command(CONTEXT, name)
        assert (command.name, command.short_help) == (name, text)
        assert text.endswith(".")
    assert main.get_command(CONTEXT, "rnu") is None


def test_a_mistyped_command_gets_a_suggestion():
    done = python("from gemkit.cli import main; main(['rnu'])", stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.startswith("gemkit: No such command 'rnu'. Did you mean 'run'?")


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
    code = "import gemkit.training.plan" + HELP.format(words=[], heavy=HEAVY)
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


def test_a_closed_pipe_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    code = "from gemkit.cli import main; main(['--help'])"
    done = python(code, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert done.stderr == ""


@pytest.mark.parametrize(("given", "kept"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_sleep_unless_the_user_sets_another_policy(given, kept):
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
    assert get_args(runtime["device"].annotation) == options.DEVICES
    assert get_args(runtime["precision"].annotation) == options.PRECISIONS
    assert get_args(CollapsePolicy) == options.POLICIES
    assert get_args(plan.Plan.model_fields["on_nan"].annotation) == options.ON_NAN
    assert DiskCheckpointer.__init__.__kwdefaults__["minutes"] == options.CHECKPOINT_MINUTES
    assert list(recipe.ROLES) == list(options.ROLES)
    assert training["epochs"].default == options.EPOCHS
    assert training["batch_size"].default == options.BATCH_SIZE
    defaults = {one.name: one.default for one in RUN.params}
    for field in ("device", "devices", "precision"):
        assert defaults[field] == runtime[field].default


@pytest.mark.parametrize("path", commands(main), ids=" ".join)
def test_every_command_and_option_explains_itself(path):
    command: click.Command = main
    for name in path:
        command = command.get_command(CONTEXT, name)
    assert command.help
    for parameter in command.params:
        assert isinstance(parameter, click.Argument) or parameter.help
