"""All built-in parts keep their contracts, and no clause is skipped."""

import pytest
import torch
from broken_seams import Following, Smoothed
from data_files import write_every_data_set
from torch import nn

from gemkit import Freeze, FreezeSchedule, Structure, load_plugins
from gemkit.data.folders import ImageFolder
from gemkit.methods.regrowth import Regrow
from gemkit.methods.smart_ratio import Densities
from gemkit.models.custom import Custom
from gemkit.plugins.loader import BUILT_IN
from gemkit.sanity.controls import RandomTicket
from gemkit.testing import contract, things_of

REGISTRY = load_plugins(only=())


@pytest.fixture(autouse=True)
def nothing_is_left_untried(monkeypatch):
    """Turn every skip into a failure, except that of an extra that is not installed."""
    skip = pytest.skip

    def fail(reason):
        (skip if "Parsl is not installed" in reason else pytest.fail)(reason)

    monkeypatch.setattr(pytest, "skip", fail)


def linear(shape, classes):
    """Build a custom network, for `--model test_contracts:linear`."""
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
test_weights_that_return_every_other_step = contract(Regrow(every=2))


class ShareOfRows(Structure):
    """A number of weights of every row, more of longer ones."""

    name = "share_of_rows"

    def fold(self, weight):
        return weight.reshape(len(weight), weight.shape[1:].numel(), 1)

    def units_of(self, density, units):
        return int(density * units)


class DenseAgain(FreezeSchedule):
    """Sparse in the middle, and then more weights return than were kept."""

    name = "dense_again"

    @property
    def trains(self):
        return True

    def freezes(self, target, epochs, steps_per_epoch):
        half = epochs * steps_per_epoch // 2
        return [Freeze(0, target / 2), Freeze(half, target, 0.1)]


test_a_share_of_rows = contract(ShareOfRows)
test_a_density_that_rises_where_weights_return = contract(DenseAgain)
test_a_penalty_with_a_state = contract(Following)
test_a_loss_with_a_state = contract(Smoothed)
