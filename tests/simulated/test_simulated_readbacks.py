"""No step waits for the device, and a freeze reads back five times at most."""

import pytest
import torch
from tiny import tiny_data, tiny_net

from benchmarks import readbacks
from gemkit import load_plugins
from gemkit.core.tensors import counts, kept, names_where
from gemkit.models.signal import trace
from gemkit.pruning import collapse
from gemkit.testing import simulated
from gemkit.training.trainer import Trainer

REGISTRY = load_plugins()
DEVICE = simulated.install()
MOST = 5


@pytest.mark.one_in(2)
@pytest.mark.parametrize("pruner", sorted(REGISTRY.pruners))
def test_a_freeze_reads_back_a_few_times_and_a_step_never(pruner):
    row = readbacks.measure(pruner)
    assert row["per_step"] == 0
    assert 0 < row["per_freeze"] <= MOST


def test_a_read_back_for_every_layer_would_be_noticed(monkeypatch):
    one_by_one = {"counts": lambda masks: {name: int(mask.sum()) for name, mask in masks.items()}}
    monkeypatch.setattr(collapse, "counts", one_by_one["counts"])
    assert readbacks.measure("snip")["per_freeze"] > MOST


def test_a_read_back_in_a_step_would_be_noticed(monkeypatch):
    real = Trainer.step

    def looking(self, batch, *arguments):
        assert batch[0].sum().item() != 0
        return real(self, batch, *arguments)

    monkeypatch.setattr(Trainer, "step", looking)
    assert readbacks.measure("snip")["per_step"] == 1


# --- what they are made of -----------------------------------------------------------------------


def masks():
    return {name: torch.rand(4, 5).gt(0.5).to(DEVICE) for name in "abc"}


def test_masks_are_counted_once_until_they_change():
    known = masks()
    expected = {name: int(mask.raw.sum()) for name, mask in known.items()}
    with simulated.watched() as seen:
        assert counts(known) == counts(dict(known)) == expected
        assert kept({"b": known["b"]}) == expected["b"]
    assert len(seen.waits) == 1
    known["b"].fill_(True)
    with simulated.watched() as seen:
        assert counts(known) == expected | {"b": 20}
    assert len(seen.waits) == 1
    view = known["c"][0]
    view.zero_()
    assert counts(known)["c"] == int(known["c"].raw.sum())


def test_a_mask_that_is_gone_leaves_no_count_to_another():
    for number in range(20):
        mask = torch.zeros(30, dtype=torch.bool)
        mask[:number] = True
        assert kept({"a": mask.to(DEVICE)}) == number


def test_facts_of_all_layers_are_read_together():
    known = masks()
    with simulated.watched() as seen:
        some, every = names_where(
            {name: mask.any() for name, mask in known.items()},
            {"none": torch.zeros((), dtype=torch.bool, device=DEVICE)},
        )
    assert (some, every) == (list("abc"), [])
    assert len(seen.waits) == 1


def test_signal_is_traced_in_two_read_backs():
    net, batch = tiny_net().to(DEVICE), next(tiny_data().train.to(DEVICE).batches(16))
    names = ["0.weight", "3.weight", "5.weight", "8.weight"]
    with simulated.watched() as seen:
        trace(net, names, batch)
    assert len(seen.waits) == 2
