"""The page about networks: its table follows the code, and its examples run."""

import re
import shlex
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from cli_runs import commands_in
from tiny import tiny_data
from torch import nn

from gemkit import load_plugins, prunable_names
from gemkit.core.tensors import parameters_of, total

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
REGISTRY = load_plugins(only=())
ROWS = re.findall(r"^\| `(\w+)` \| ([\d × ]+) \| (\d+) \| (\d+) \| ([\d,]+) \|$", PAGE, re.M)
TINY = (
    *("--dataset", "fake", "-o", "dataset.samples=20", "-o", "dataset.size=32", "--epochs", "1"),
    *("--pruner", "magnitude", "--density", "0.5", "--device", "cpu"),
)


@pytest.mark.parametrize(("name", "images", "classes", "layers", "weights"), ROWS)
def test_the_table_counts_right(name, images, classes, layers, weights):
    shape = tuple(int(size) for size in images.split(" × "))
    with torch.device("meta"):
        model = REGISTRY.build("models", name).build(shape, int(classes))
    names = prunable_names(model)
    assert (str(len(names)), f"{total(parameters_of(model, names)):,}") == (layers, weights)


def test_the_table_lists_every_network():
    named = {name for name, *_ in ROWS}
    parts = REGISTRY.parts["models"]
    assert named == {name for name in parts if parts[name].thing.argument is None}


EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    for line in block.splitlines()
    if "pretrained" not in line and "weights=" not in line and "…" not in line
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_run(command, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mynets.py").write_text(EXAMPLES[0])
    words = shlex.split(command)[1:]
    shown = commands_in(tmp_path, monkeypatch)(*words, *TINY)
    sys.modules.pop("mynets", None)
    assert shown.exit_code == 0, shown.stderr


def test_the_example_of_frozen_parameters_runs():
    layers = {"flat": nn.Flatten(), "body": nn.Linear(72, 9), "head": nn.Linear(9, 3)}
    model = nn.Sequential(OrderedDict(layers))
    space = {"model": model, "data": tiny_data()}
    exec(EXAMPLES[1], space)
    assert list(space["dense"].mask) == ["head.weight"]
    assert list(space["ticket"].mask) == ["body.weight", "head.weight"]
    assert torch.equal(space["trained"].state["body.weight"], model.body.weight)


def test_switches_of_the_page_are_fields():
    fields = {
        field for entry in REGISTRY.parts["models"].values() for field in entry.thing.model_fields
    }
    assert set(re.findall(r"model\.(\w+)=", PAGE)) <= fields
    assert len(COMMANDS) == 3
