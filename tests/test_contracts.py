"""gemkit's own parts keep the contracts that it asks of others, and none is left untried."""

import pytest
import torch
from data_files import write_every_data_set
from torch import nn

from gemkit import load_plugins
from gemkit.builtin.checks import RandomTicket
from gemkit.data.folders import ImageFolder
from gemkit.methods.smart_ratio import Densities
from gemkit.models.custom import Custom
from gemkit.plugins import BUILT_IN
from gemkit.testing import contract, things_of

REGISTRY = load_plugins(only=())


@pytest.fixture(autouse=True)
def nothing_is_left_untried(monkeypatch):
    """Whatever the kit would skip is a failure here."""
    monkeypatch.setattr(pytest, "skip", pytest.fail)


def linear(shape, classes):
    """A network of somebody's own, as `--model test_contracts:linear` names it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))


test_every_part_and_pruner_of_gemkits_own = contract(
    *(thing for plugin in BUILT_IN for thing in things_of(REGISTRY, plugin)),
    Densities(densities=(0.5, 0.25, 0.75, 1.0)),
    RandomTicket(allocation="erk"),
    ImageFolder(path="pictures"),
    files=write_every_data_set,
)
test_images_read_when_they_are_needed = contract(
    ImageFolder(path="pictures", memory="never"), files=write_every_data_set
)
test_a_network_of_ones_own = contract(Custom(function=f"{__name__}:linear"))
