"""A held mask takes two kernels a step, whatever the number of layers, and waits for nothing."""

import pytest
import torch
from torch import nn

from benchmarks import hold
from gemkit.testing import simulated

DEVICE = simulated.install()


@pytest.mark.parametrize("layers", [1, 3, 30])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_a_held_step_takes_two_kernels_more(layers, make):
    def seen_with(held):
        model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(layers)))
        ticket = hold.random_ticket(model)
        model = model.to(DEVICE)
        optimizer = make(model.parameters(), lr=0.1, fused=True)
        held = ticket.hold(model, optimizer) if held else None
        for _ in range(2):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            with simulated.watched() as seen:
                optimizer.step()
        if held:
            held.remove()
            weights = (model.get_parameter(name).detach().cpu() for name in ticket.mask)
            for weight, mask in zip(weights, ticket.mask.values(), strict=True):
                assert not weight[~mask].any()
        return seen

    plain, held = seen_with(False), seen_with(True)
    assert held.kernels - plain.kernels == {"_foreach_mul_": 2}
    assert held.waits == plain.waits
    assert held.uploads == plain.uploads


def test_the_benchmark_counts_the_same():
    counts = hold.kernels("resnet20")
    assert counts["held"] - counts["plain"] == 2
    assert counts["held waits"] == counts["plain waits"] == 0
