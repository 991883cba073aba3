"""AC/DC keeps its contracts, and equals plain PyTorch."""

import math
from pathlib import Path

import gemkit_ac_dc
import pytest
import torch
import torch.nn.functional as F
from gemkit_ac_dc import Alternate
from hypothesis import given
from hypothesis import strategies as st

from gemkit import Plan, Runtime, load_plugins, search
from gemkit.core.errors import FitError
from gemkit.core.events import Froze, PhaseStarted
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import budget
from gemkit.testing import contract, tiny_data, tiny_net
from gemkit.training.device import make_fabric
from gemkit.training.loop import endless

test_plugin = contract(gemkit_ac_dc)
test_long_phases = contract(Alternate(warmup=0.0, phase=0.2, last=0.0))

REGISTRY = load_plugins(files=[Path(gemkit_ac_dc.__file__)], only=())
CPU64 = Runtime(device="cpu", precision="64")
EPOCHS, BATCH, TARGET, LR = 10, 8, 0.3, 0.5
MASKED, DENSE = {1, 3, 5, 8}, {2, 4, 6}
"""The epochs before which a mask is set, and taken off, in a search of ten."""


def reference():
    """Train with and without a mask in turns, with torch's SGD; return weights and the mask."""
    model = tiny_net().double().train()
    own = dict(model.named_parameters())
    names = prunable_names(model)
    optimizer = torch.optim.SGD(own.values(), lr=1.0, momentum=0.9, weight_decay=0.01)
    source = endless(tiny_data().train, BATCH, seed=0, fabric=make_fabric(CPU64))
    mask = None
    for epoch in range(EPOCHS):
        if epoch in MASKED:
            flat = torch.cat([own[name].detach().abs().flatten() for name in names])
            order = sorted(range(len(flat)), key=lambda at: (-float(flat[at]), at))
            chosen = torch.zeros(len(flat), dtype=torch.float64)
            chosen[order[: budget(len(flat), TARGET)]] = 1
            parts = chosen.split([own[name].numel() for name in names])
            mask = {n: part.view_as(own[n]) for n, part in zip(names, parts, strict=True)}
            for name in names:
                own[name].data *= mask[name]
                optimizer.state[own[name]]["momentum_buffer"] *= mask[name]
        elif epoch in DENSE:
            mask = None
        optimizer.param_groups[0]["lr"] = LR / 2 * (1 + math.cos(math.pi * epoch / EPOCHS))
        for _ in range(4):
            images, labels = next(source)
            optimizer.zero_grad()
            F.cross_entropy(model(images.double()), labels).backward()
            for name in names if mask else ():
                own[name].grad *= mask[name]
            optimizer.step()
    return {name: p.detach() for name, p in own.items()}, mask


class Watching:
    """Notes the mask after every freeze."""

    def __init__(self):
        self.masks = []

    def __call__(self, event):
        if isinstance(event, PhaseStarted):
            self.view = event.view
        elif isinstance(event, Froze):
            self.masks.append(self.view.masks())


def found(watching):
    return search(
        REGISTRY.recipe("ac_dc"),
        tiny_net().double(),
        tiny_data(),
        density=TARGET,
        plan=Plan(epochs=EPOCHS, batch_size=BATCH, lr=LR, weight_decay=0.01),
        runtime=CPU64,
        observers=[watching],
        on_collapse="warn",
    )


def test_a_search_is_that_of_plain_pytorch():
    watching = Watching()
    ticket = found(watching)
    weights, mask = reference()
    for name, own in weights.items():
        if name in mask:
            assert torch.equal(ticket.mask[name], mask[name].bool())
            own, state = own * mask[name], ticket.state[name] * mask[name]
        else:
            state = ticket.state[name]
        torch.testing.assert_close(state, own, rtol=1e-10, atol=1e-10)


def test_phases_keep_the_exact_count_and_everything_in_turns():
    watching = Watching()
    ticket = found(watching)
    few, everything = budget(ticket.prunable, TARGET), ticket.prunable
    kept = [sum(int(own.sum()) for own in mask.values()) for mask in watching.masks]
    assert kept == [few, everything] * 3 + [few]
    assert [record.kept for record in ticket.info.history] == kept
    first, last = watching.masks[0], watching.masks[-1]
    assert any((last[name] & ~first[name]).any() for name in first), "weights have returned"


def test_a_hundred_epochs_are_those_of_the_paper():
    freezes = Alternate().freezes(0.1, 100, 1)
    masked = [freeze.step for freeze in freezes if freeze.density == 0.1]
    dense = [freeze.step for freeze in freezes if freeze.density == 1.0]
    assert masked == [10, 20, 30, 40, 50, 60, 70, 85]
    assert dense == [15, 25, 35, 45, 55, 65, 75]


@given(
    epochs=st.integers(1, 300),
    warmup=st.sampled_from([0.0, 0.1, 0.5]),
    phase=st.sampled_from([0.01, 0.05, 0.3]),
    last=st.sampled_from([0.0, 0.15, 0.4]),
)
def test_masks_and_phases_without_one_take_turns(epochs, warmup, phase, last):
    try:
        freezes = Alternate(warmup=warmup, phase=phase, last=last).freezes(0.2, epochs, 7)
    except FitError:
        return
    assert [freeze.density for freeze in freezes] == ([0.2, 1.0] * len(freezes))[: len(freezes)]
    assert freezes[-1].density == 0.2
    steps = [freeze.step for freeze in freezes]
    assert steps == sorted(set(steps))
    assert steps[-1] == (epochs - round(last * epochs)) * 7


def test_too_few_epochs_are_refused_with_the_way_out():
    with pytest.raises(FitError, match=r"no epoch between .* train longer"):
        Alternate(warmup=0.9, last=0.5).freezes(0.1, 10, 1)
