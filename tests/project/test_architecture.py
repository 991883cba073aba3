"""Imports go one way, the engine knows no plugins, and the doors open without torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gemkit

ROOT = Path(gemkit.__file__).parent

# A module may import from its own row and from the rows above it, never from below.
# A package stands for all its modules that no row names.
ROWS = [
    ["core"],
    [
        "data.source",
        "data.checks",
        "data.fingerprint",
        "data.splits",
        "data.augment",
        "data.sampler",
        "data.tensor_source",
        "data.batch",
        "data.own_random",
        "data.readers",
        "data.stream",
        "data.objects",
        "data.given",
        "data.__init__",
        "models.check",
        "models.prepare",
        "models.signal",
        "models.__init__",
    ],
    ["parts"],
    ["training"],
    ["tickets"],
    ["pruning"],
    ["plugins.markers", "plugins.__init__"],
    ["builtin", "methods", "models", "data"],
    ["compaction"],
    ["sanity"],
    ["plugins.hookspecs"],
    ["runs.config", "runs.read_config", "runs.__init__", "presets", "plugins"],
    ["report.progress", "report.__init__", "ranking", "api"],
    ["testing", "report"],
    ["runs"],
    ["study"],
    ["reproduce"],
    ["cli"],
    ["gemkit", "__init__", "__main__"],
]
PLACE = {name: row for row, names in enumerate(ROWS) for name in names}
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.rglob("*.py")
)


def place(module: str) -> int | None:
    """Return the row of a module, or of the closest package that has one."""
    if f"{module}.__init__" in PLACE:
        return PLACE[f"{module}.__init__"]
    while module and module not in PLACE:
        module = module.rpartition(".")[0]
    return PLACE.get(module)


WITHOUT_PLUGGY = [name for name in MODULES if (place(name) or 0) < PLACE["plugins.markers"]]


def imports(source: str) -> Iterator[str]:
    """Yield every module that a source imports, also for type checking alone."""
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "write imports from gemkit in full"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule.removeprefix("gemkit.") in MODULES else node.module
        pending.extend(ast.iter_child_nodes(node))


def upward(module: str, source: str) -> list[str]:
    """List the imports of gemkit modules that stand below this one."""
    own = [name.removeprefix("gemkit.") for name in foreign(source, "gemkit")]
    return [name for name in own if (place(name) or 0) > (place(module) or 0)]


def foreign(source: str, package: str) -> list[str]:
    """List the imports of a package."""
    return sorted({name for name in imports(source) if name.split(".")[0] == package})


def read(module: str) -> str:
    return (ROOT / Path(*module.split("."))).with_suffix(".py").read_text()


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_place(module):
    assert place(module) is not None, f"give gemkit.{module} a place in ROWS"


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    assert upward(module, read(module)) == []


@pytest.mark.parametrize("module", MODULES)
def test_nothing_but_the_command_line_needs_the_command_line(module):
    own = module == "__main__" or module.split(".")[0] == "cli"
    assert own or not [name for name in foreign(read(module), "gemkit") if is_cli(name)]


def is_cli(name: str) -> bool:
    return f"{name}.".startswith("gemkit.cli.")


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("runs")])
def test_runs_leave_the_terminal_and_the_process_to_others(module):
    """A library that prints, or ends its caller's process, cannot be used from a notebook."""
    source = read(module)
    assert foreign(source, "click") + foreign(source, "rich") + foreign(source, "sys") == []
    assert "print" not in {
        node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)
    }


@pytest.mark.parametrize("module", WITHOUT_PLUGGY)
def test_the_engine_knows_no_plugins(module):
    assert foreign(read(module), "pluggy") == []


def test_the_registry_is_a_value_without_pluggy():
    assert foreign(read("plugins.registry") + read("parts.options"), "pluggy") == []


@pytest.mark.parametrize(
    "line",
    [
        "from gemkit.pruning.search import search",
        "from gemkit import engine",
        "import gemkit.cli.main",
        "def later():\n    from gemkit.plugins.loader import load_plugins",
        "from gemkit.builtin.roundings import Open",
        "from gemkit.data.fake import Fake",
        "from gemkit.data import fake",
        "from gemkit import __version__",
    ],
)
def test_an_import_from_below_would_be_noticed(line):
    assert len(upward("parts.scores", line)) == 1


@pytest.mark.parametrize(
    "line",
    ["from gemkit.core.tensors import Tensors", "from gemkit.data import Data", "import torch"],
)
def test_an_import_from_above_is_fine(line):
    assert upward("parts.scores", line) == []


def test_type_checking_does_not_excuse_an_import_from_below():
    guarded = "if TYPE_CHECKING:\n    from gemkit.tickets.ticket import Ticket"
    assert upward("parts.scores", guarded) == ["tickets.ticket"]


def test_pluggy_in_the_engine_would_be_noticed():
    assert "pruning.search" in WITHOUT_PLUGGY
    assert "plugins.loader" not in WITHOUT_PLUGGY
    assert foreign("from pluggy import PluginManager", "pluggy") == ["pluggy"]


def at_once(source: str) -> list[str]:
    """List what importing a module imports; functions wait until they are called."""
    lines = [
        node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return [name for line in lines for name in imports(ast.unparse(line))]


@pytest.mark.parametrize("module", MODULES)
def test_what_only_reports_need_waits_until_they_need_it(module):
    slow = {"scipy", "matplotlib"}
    assert not slow & {name.split(".")[0] for name in at_once(read(module))}


def test_a_slow_import_would_be_noticed():
    assert at_once("from scipy import stats") == ["scipy"]
    assert at_once("def later():\n    from scipy import stats") == []


def test_hook_markers_do_not_load_torch():
    code = (
        "import sys, gemkit.plugins.markers as _; print([m in sys.modules for m in sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "pluggy", "torch"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[True, False]"
