"""What an update of Gem-Miner costs beside one of fused SGD, where there is nothing to compute.

    python -m benchmarks.overhead [--json] [--turns 500]

20 layers of four weights, so that only calls count. Both take turns in one process, one update at
a time, so that other work on the machine disturbs few of them; the ratio is the median of all.
"""

import argparse
import json
from collections.abc import Callable

import torch
from torch import nn

from gemkit import Plan, load_plugins
from gemkit.compaction.timing import time_interleaved
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator
from gemkit.pruning.masked import MaskedNet
from gemkit.training.optimizers import make_optimizer

LAYERS = 20
PLAN = Plan(lr=1e-3)


def small() -> nn.Module:
    """Layers of ones: gradients that are multiplied by them neither grow nor vanish."""
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(LAYERS)))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    return model


def once(model: nn.Module, update: Callable[[], object]) -> Callable[[], None]:
    """Update a model, with gradients that are there already."""
    parameters = list(model.parameters())
    gradients = [torch.full_like(parameter, 1e-3) for parameter in parameters]

    def lap() -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        update()

    return lap


def dense() -> Callable[[], None]:
    """Plain training with fused SGD."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return once(model, update)


def searching() -> Callable[[], None]:
    """Gem-Miner."""
    model = small()
    recipe = load_plugins(only=[]).recipe("gem_miner")
    net = MaskedNet.learning(model, prunable_names(model), recipe, generator(0, "scores"))
    optimizer = make_optimizer(PLAN, net.trainable())
    return once(model, lambda: net.step(optimizer))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the ratio as JSON")
    parser.add_argument("--turns", type=int, default=500, help="how often each is timed")
    given = parser.parse_args()
    torch.set_num_threads(1)
    times = time_interleaved({"dense": dense(), "gem_miner": searching()}, given.turns)
    ratio = times["gem_miner"].ratio(times["dense"])
    print(json.dumps({"ratio": ratio}) if given.json else f"{ratio:.2f} updates of fused SGD")


if __name__ == "__main__":
    main()
