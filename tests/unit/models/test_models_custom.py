"""Custom networks, given as package.module:function; a ticket alone never runs code."""

import sys

import pytest
from cli_runs import answer, commands_in

from gemkit.tickets.ticket import Ticket

TINY = (
    *("--dataset", "fake", "-o", "dataset.samples=30", "--epochs", "1", "--device", "cpu"),
    *("--pruner", "magnitude", "--density", "0.5"),
)
MODULE = """
from pathlib import Path

import torch
from torch import nn

with Path("imported").open("a") as file:
    file.write("once more\\n")

number = 3


def small(shape, classes):
    features = 4 * (shape[1] - 2) * (shape[2] - 2)
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(features, classes)
    )


class Whole(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.inner = small(shape, classes)

    def forward(self, x):
        return self.inner(x)


class Reader(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 8), nn.Linear(8, classes)

    def forward(self, tokens):
        return self.head(self.table(tokens).flatten(1, -2).mean(1))


def picky(classes):
    return small((3, 8, 8), classes)


def nothing(shape, classes):
    pass


def broken(shape, classes):
    return {}["key"]


def headless(shape, classes):
    return nn.Sequential(nn.Conv2d(3, classes, 3))


def two_outputs(shape, classes):
    class Two(Whole):
        def forward(self, x):
            return self.inner(x), x
    return Two(shape, classes)
"""


WORDS = """
import torch
from gemkit import Data, DatasetPart, hookimpl


class Words(DatasetPart):
    '''Texts of four tokens, in two classes.'''

    name = "words"

    def load(self, folder):
        pair = (torch.arange(160).reshape(40, 4) % 9, torch.arange(40) % 2)
        return Data.of_tensors(train=pair, test=pair)


@hookimpl
def gemkit_datasets():
    return [Words]
"""


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    package = tmp_path / "nets_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "small.py").write_text(MODULE)
    (package / "wrong.py").write_text("import no_such_thing_at_all\n")
    (package / "syntax.py").write_text("def f(:\n")
    (package / "leaves.py").write_text("raise SystemExit(3)\n")
    yield commands_in(tmp_path, monkeypatch)
    for name in [name for name in sys.modules if name.startswith("nets_of_mine")]:
        del sys.modules[name]


def test_a_custom_network_is_searched_fine_tuned_and_evaluated(gemkit, tmp_path):
    address = "nets_of_mine.small:small"
    run = answer(
        gemkit("run", *TINY, "--model", address, "--strip-bias", "--bn", "plain", "--json")
    )
    assert run["model"] == {"custom": address, "strip_bias": True, "bn": "plain"}
    ticket = Ticket.load(run["ticket"])
    assert list(ticket.mask) == ["0.weight", "3.weight"]
    assert not [name for name in ticket.state if name.endswith("bias")]
    assert f"ticket for {address} for 3x8x8" in ticket.summary()
    assert f'custom = "{address}"' in (tmp_path / run["run_dir"] / "config.toml").read_text()
    # The ticket records the network's fields.
    again = answer(gemkit("eval", run["finetuned"], "--model", address, "--json"))
    assert again["accuracy"] == run["accuracy_after"]
    trained = answer(gemkit("finetune", run["ticket"], "--model", address, "--epochs", 1, "--json"))
    assert Ticket.load(trained["ticket"]).info.model == run["model"]


def test_a_class_works_too_and_the_next_command_repeats_the_address(gemkit):
    shown = gemkit("run", *TINY, "--model", "nets_of_mine.small:Whole")
    assert shown.exit_code == 0, shown.stderr
    assert "--model nets_of_mine.small:Whole" in shown.stdout


def test_a_ticket_alone_runs_no_code(gemkit, tmp_path):
    run = answer(gemkit("run", *TINY, "--model", "nets_of_mine.small:small", "--json"))
    ticket = Ticket.load(run["ticket"])
    imported = (tmp_path / "imported").read_text()
    del sys.modules["nets_of_mine.small"]
    address = "nets_of_mine.small:small"
    claims = [
        {"custom": address},
        {"custom": address, "name": "conv4"},
        {"name": address},
        {"name": "custom", "function": address},
        {"name": f"custom:{address}"},
    ]
    for number, claim in enumerate(claims):
        file = f"{number}.safetensors"
        ticket.with_info(model=claim).save(file)
        for command in ("eval", "finetune"):
            shown = gemkit(command, file)
            assert shown.exit_code == 2, claim
            assert "Traceback" not in shown.stderr
            if "custom" in claim:
                assert f"built by '{address}'" in shown.stderr
                assert "give --model" in shown.stderr
    assert "nets_of_mine.small" not in sys.modules
    assert (tmp_path / "imported").read_text() == imported


MISTAKES = {
    "no_such_package_at_all.net:f": ["no module no_such_package_at_all", "gemkit parts models"],
    "nets_of_mine.smal:small": ["no module nets_of_mine.smal"],
    "nets_of_mine.wrong:f": ["cannot be imported", "no_such_thing_at_all", "wrong.py, line 1"],
    "nets_of_mine.syntax:f": ["cannot be imported", "SyntaxError", "syntax.py, line 1"],
    "nets_of_mine.leaves:f": ["cannot be imported", "SystemExit"],
    "nets_of_mine.small:smal": ["has no 'smal'", "did you mean 'small'"],
    "nets_of_mine.small:number": ["is of type int", "should be a function"],
    "nets_of_mine.small:picky": ["failed when called", "TypeError"],
    "nets_of_mine.small:broken": ["failed when called", "KeyError", "small.py, line"],
    "nets_of_mine.small:nothing": ["returned a value of type NoneType", "torch.nn.Module"],
    "nets_of_mine.small:headless": ["for two inputs of 3 × 8 × 8", "(2, 4, 6, 6)", "4 classes"],
    "nets_of_mine.small:two_outputs": ["of type tuple", "one tensor of logits"],
    "nets_of_mine.small": ["unknown model 'nets_of_mine.small'"],
    "nets_of_mine.small:": ["unknown model"],
    "nets_of_mine/small.py:small": ["unknown model"],
}


@pytest.mark.parametrize("address", MISTAKES)
def test_mistakes_end_with_one_message(gemkit, address, tmp_path):
    shown = gemkit("run", *TINY, "--model", address)
    assert shown.exit_code == 2
    for piece in MISTAKES[address]:
        assert piece in shown.stderr
    assert "Traceback" not in shown.stderr
    assert not (tmp_path / "runs").exists()


def test_a_network_may_read_tokens(gemkit, tmp_path):
    (tmp_path / "words.py").write_text(WORDS)
    words = ("--plugin", "words.py", "--dataset", "words", "--model", "nets_of_mine.small:Reader")
    run = ("run", *TINY[4:], "-o", "finetune.batch_size=8", *words)
    shown = gemkit(*run)
    assert shown.exit_code == 0, shown.stderr
    other = gemkit(*run, "--pruner", "synflow")
    assert other.exit_code == 2
    assert "these inputs are indices such as tokens" in other.stderr
    values = gemkit("run", *TINY, "--model", "nets_of_mine.small:Reader")
    assert values.exit_code == 2
    assert "Traceback" not in values.stderr


def test_fields_of_a_custom_network_are_checked(gemkit):
    shown = gemkit("run", *TINY, "--model", "nets_of_mine.small:small", "-o", "model.width=3")
    assert shown.exit_code == 2
    assert "model.width does not exist" in shown.stderr


def test_a_registered_name_is_never_taken_for_a_module(gemkit, tmp_path):
    (tmp_path / "timm.py").write_text("raise SystemError('imported from the folder')")
    shown = gemkit("run", *TINY, "--model", "timm:resnet19")
    assert "model.network = 'resnet19'" in shown.stderr
