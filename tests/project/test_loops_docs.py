"""The page about one's own loop: its examples run."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny import tiny_data, tiny_net
from torch.nn.utils import prune

from gemkit import Ticket, prunable_names

PAGE = (Path(__file__).parents[2] / "docs" / "loops.md").read_text()
LOOP, LIGHTNING, TRAINER, MASKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def a_ticket(model):
    masks = {
        name: torch.arange(model.get_parameter(name).numel()).view(model.get_parameter(name).shape)
        % 2
        == 0
        for name in prunable_names(model)
    }
    return Ticket.from_masks(model, masks), masks


def assert_zero(ticket, model):
    for name, mask in ticket.mask.items():
        assert not model.get_parameter(name).detach()[~mask].any()


@pytest.fixture
def names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tiny_net()
    ticket, masks = a_ticket(model)
    ticket.save("gem.safetensors")
    batches = list(tiny_data().train.batches(16))
    return {"model": model, "ticket": ticket, "masks": masks, "loader": batches}


def test_the_plain_loop_runs(names):
    exec(LOOP, names)
    assert_zero(names["ticket"], names["model"])
    assert not torch.equal(names["model"][0].weight, names["ticket"].state["0.weight"])


def test_masks_from_elsewhere_run(names, tmp_path):
    names["pruned"] = tiny_net()
    prune.l1_unstructured(names["pruned"][0], "weight", amount=0.5)
    exec(MASKS.replace("(3, 32, 32), classes=10", "(2, 6, 6), classes=3"), names)
    assert names["same"].density < 1
    assert (tmp_path / "theirs.safetensors").exists()


@pytest.mark.filterwarnings("ignore")  # their own
def test_the_example_of_lightning_runs(names):
    pytest.importorskip("lightning")
    example = LIGHTNING.replace("max_epochs=10", "max_epochs=1, accelerator='cpu', logger=False")
    exec(example, {**names, "torch": torch, "F": F})
    assert_zero(names["ticket"], names["model"])


def test_the_example_of_hugging_face_is_python():
    compile(TRAINER, "page", "exec")
