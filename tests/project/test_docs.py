"""The pages say what the code does: tables follow the registry, examples run."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from cli_runs import TINY, commands_in
from tiny import CPU, tiny_data, tiny_net

import gemkit
from docs.tools import methods
from docs.tools.methods import BEGIN, END, methods_table, renewed
from gemkit import load_plugins
from gemkit.cli.configure import KINDS, make_recipe, sort_fields
from gemkit.cli.run import run
from gemkit.parts.fit import check_fit
from gemkit.parts.recipe import ROLES
from gemkit.plugins.loader import BUILT_IN
from gemkit.plugins.registry import KIND_OF_ROLE
from gemkit.runs.directory import RunDir
from gemkit.training.metrics import METRICS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text()
METHODS = (ROOT / "docs" / "methods.md").read_text()
CHECKS = (ROOT / "docs" / "sanity-checks.md").read_text()
REGISTRY = load_plugins()


def rows(text, columns):
    """Read the code words of every table row with this many columns."""
    for line in text.splitlines():
        cells = line.strip("|").split("|")
        if line.startswith("|") and len(cells) == columns:
            yield [re.findall(r"`([^`]+)`", cell) for cell in cells]


def test_the_table_of_pruners_is_the_registry():
    """Where it is not: python -m docs.tools.methods docs/methods.md."""
    table = methods_table(load_plugins(only=()))
    assert renewed(METHODS, table) == METHODS
    assert renewed(METHODS, table.replace("`gem_miner`", "`other`")) != METHODS


def test_the_command_renews_a_page_and_nothing_else_on_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nstale\n{END}\nbelow\n")
    methods.main([str(page)])
    above, *table, below = page.read_text().splitlines()
    assert (above, below) == ("above", "below")
    assert table[0] == BEGIN
    assert table[-1] == END
    assert all(f"| `{name}` |" in page.read_text() for name in load_plugins(only=()).pruners)


def test_the_commands_on_the_page_of_pruners_fit():
    commands = re.findall(r"gemkit run ([^`\n#]+)", METHODS)
    assert len(commands) == 14
    for command in commands:
        given = run.make_context("run", shlex.split(command)).params
        fields = sort_fields(given["fields"], KINDS)
        roles = {role: given[role] for role in ROLES}
        recipe = make_recipe(REGISTRY, given["pruner"], None, roles, fields)
        check_fit(recipe, epochs=given["epochs"], density=given["density"])


def test_the_table_of_parts_is_the_registry():
    table = {row[0][0]: set(row[2]) for row in rows(CONCEPTS, 3) if row[0] and row[0][0] in ROLES}
    expected = {role: set(REGISTRY.parts[kind]) for role, kind in KIND_OF_ROLE.items()}
    assert table.pop("grow") <= expected.pop("grow")  # any scores may play this role
    assert table == expected


def test_the_table_of_data_sets_is_the_registry():
    text = (ROOT / "docs" / "data.md").read_text()
    table = {row[0][0].partition(":")[0] for row in rows(text, 4) if row[0]}
    assert table == {
        name for name, entry in REGISTRY.parts["datasets"].items() if entry.plugin in BUILT_IN
    }


def code_blocks(language, page=README):
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def test_the_table_of_checks_is_the_registry():
    table = [row[0][0] for row in rows(CHECKS, 3) if row[0]]
    assert sorted(table) == sorted(REGISTRY.parts["checks"])


def test_the_table_of_measurements_is_the_registry():
    table = [row[0][0] for row in rows(CHECKS, 2) if row[0]]
    assert sorted(table) == sorted(REGISTRY.parts["measurements"])


@pytest.mark.parametrize(
    ("number", "file", "name"), [(0, "mirror", "mirror"), (1, "speed", "first_epoch")]
)
def test_the_parts_of_the_page_on_checks_run(number, file, name, tmp_path, monkeypatch):
    plugin = code_blocks("python", CHECKS)[number]
    [command] = re.findall(rf"`gemkit (check RUN --plugin {file}.py [^`]+)`", CHECKS)
    gemkit = commands_in(tmp_path, monkeypatch)
    Path(f"{file}.py").write_text(plugin)
    gemkit("run", "--pruner", "random", *TINY, "--out", "RUN")
    result = gemkit(*command.split(), "--seeds", "1")
    assert result.exit_code == 0, result.stderr
    assert f"seed 0, {name}" in result.stderr


def test_the_readmes_plugin_runs(tmp_path, monkeypatch):
    [plugin] = [block for block in code_blocks("python") if "hookimpl" in block]
    [command] = re.findall(r"`gemkit (run --plugin mine.py [^`]+)`", README)
    file = tmp_path / "mine.py"
    file.write_text(plugin)
    arguments = command.replace("mine.py", str(file)).split()
    small = ["--finetune-epochs", "1"]
    gemkit = commands_in(tmp_path, monkeypatch)
    result = gemkit(*arguments, *small)
    assert result.exit_code == 0, result.stderr
    checked = gemkit("check-plugin", file)
    assert checked.exit_code == 0, checked.stdout


def test_the_readmes_python_example_runs(tmp_path, monkeypatch):
    [example] = [block for block in code_blocks("python") if "timm.create_model" in block]
    data = tiny_data(classes=10, samples=40)
    images, labels = next(data.train.batches(40))
    names = {"images": images, "labels": labels, "test_images": images, "test_labels": labels}
    example = example.replace('timm.create_model("resnet18", num_classes=10)', "tiny_net(10)")
    example = example.replace("epochs=30, seed=0", "epochs=4, on_collapse='warn'").replace(
        "0.05", "0.5"
    )
    monkeypatch.chdir(tmp_path)
    exec(example, names | {"tiny_net": tiny_net, "CPU": CPU})
    assert (tmp_path / "gem.safetensors").exists()


def test_the_example_of_compaction_runs():
    [example] = code_blocks("python", (ROOT / "docs" / "compaction.md").read_text())
    model, data = tiny_net(), tiny_data()
    ticket = gemkit.search("random", model, data, density=0.1, epochs=1, runtime=CPU)
    names = {"ticket": ticket, "model": model, "data": data}
    exec(example, names)
    assert names["trained"].info.stage == "finetuned"
    assert names["trained"].state.keys() == model.state_dict().keys()


def test_the_readme_has_just_the_two_commands_and_ci_runs_the_second():
    commands = [block for block in code_blocks("sh") if block.startswith("python3 -m venv")]
    assert len(commands) == 2
    assert "gemkit run --pruner gem_miner --regularizer l2" in commands[0]
    script = (ROOT / ".ci" / "run").read_text()
    [extract] = re.findall(r"command=\$\((.*)\)$", script, flags=re.MULTILINE)
    found = subprocess.run(
        ["bash", "-c", extract], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout == commands[1]


@pytest.mark.parametrize(
    "hook", sorted(name for name in dir(gemkit.plugins.hookspecs) if "gemkit_" in name)
)
def test_every_hook_says_when_it_is_called_and_what_becomes_of_its_answer(hook):
    assert len(getattr(gemkit.plugins.hookspecs, hook).__doc__.split()) > 10


def test_the_page_on_runs_names_every_file_of_a_run():
    table = [row[0][0] for row in rows((ROOT / "docs" / "runs.md").read_text(), 2) if row[0]]
    described = [line.split()[0] for line in RunDir.__doc__.splitlines()[2:] if line.strip()]
    assert table == described


def test_the_run_of_the_page_on_runs_runs(tmp_path, monkeypatch):
    [_, example, *_] = code_blocks("python", (ROOT / "docs" / "runs.md").read_text())
    for long, short in (("=3)", "=1)"), ("=30", "=4"), ("0.05,", "0.5,"), ("print", "len_of")):
        assert long in example
        example = example.replace(long, short)
    example = example.replace('"digits"', '{"name": "fake", "samples": 60}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMKIT_PLUGINS", "")
    heard = []
    names = {"len_of": lambda *what: heard.append(what)}
    exec(example, names)
    assert names["result"].run_dir == Path("runs/mine")
    assert names["trained"].info.stage == "finetuned"
    assert heard[-1][0] == names["ticket"].density


def test_the_checkpointer_of_the_page_on_runs_saves(tmp_path, monkeypatch):
    [example, *_] = code_blocks("python", (ROOT / "docs" / "runs.md").read_text())
    example = example.replace("epochs=30", "epochs=4, on_collapse='warn'").replace("0.05", "0.5")
    monkeypatch.chdir(tmp_path)
    names = {"model": tiny_net(), "data": tiny_data()}
    exec(example, names)
    kept = names["ticket"]
    names = {"model": tiny_net(), "data": tiny_data()}
    exec(example, names)  # goes on from the last checkpoint, and finds the same
    assert names["ticket"] == kept
    assert len(list((tmp_path / "kept").iterdir())) == 2


@pytest.mark.parametrize(
    ("note", "small"),
    [
        ("tabular regression", (("2000", "120"), ("1500", "80"), ("epochs=30", "epochs=4"))),
        ("several labels", (("epochs=10", "epochs=1"),)),
    ],
)
def test_the_examples_of_other_targets_run(note, small):
    page = (ROOT / "docs" / "data.md").read_text()
    [example] = re.findall(rf"<!-- {note} -->\n```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(example.splitlines()) < 40
    for long, short in small:
        assert long in example
        example = example.replace(long, short)
    shown = []
    exec(example.replace("print(", "shown.append("), names := {"shown": shown})
    assert names["trained"].info.objective == names["ticket"].info.objective != None  # noqa: E711
    assert len(shown) == 2
    assert all(isinstance(value, float) for value in shown)


def test_the_example_of_a_loader_runs():
    page = (ROOT / "docs" / "data.md").read_text()
    note = "own model with a DataLoader"
    [example] = re.findall(rf"<!-- {note} -->\n```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(example.splitlines()) < 40
    for long, short in (("2000", "90"), ("500", "40"), ("epochs=10", "epochs=4")):
        assert long in example
        example = example.replace(long, short)
    shown = []
    exec(example.replace("print(", "note("), names := {"note": lambda *all: shown.extend(all)})
    assert names["trained"].info.stage == "finetuned"
    assert len(shown) == 2


def test_the_page_on_runs_names_every_objective_and_metric():
    page = (ROOT / "docs" / "runs.md").read_text()
    section = page.partition("## Objective and metric")[2].partition("\n## ")[0]
    for name in [*REGISTRY.parts["objectives"], *METRICS]:
        assert f"`{name}`" in section
    for name, cells in [(row[0][0], row[2]) for row in rows(section, 3) if row[0]]:
        assert cells == [REGISTRY.part("objectives", name).thing.metric]
