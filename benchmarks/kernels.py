"""How many kernels an update takes on a device, and how often it waits, on a simulated one.

    python -m benchmarks.kernels [--json]

An update is everything that a training step does after the backward pass. The device is that of
`gemkit.testing.simulated`: it counts operations, notes what is read back, and refuses lists of
tensors that CUDA would not take in one kernel.
"""

import argparse
import json
from typing import Any

import torch

from benchmarks.measure import lines
from benchmarks.networks import SETTINGS
from gemkit import Plan, load_plugins
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import generator
from gemkit.pruning.freeze import freeze
from gemkit.pruning.masked import MaskedNet
from gemkit.testing import simulated
from gemkit.training import optimizers

NETWORKS = ("resnet20", "vgg16", "timm resnet50", "timm vit_tiny")
PRUNERS = {
    "gem_miner": {},
    "gem_miner, bernoulli": {"rounding": "bernoulli"},
    "continuous_sparsification": {},
    "edge_popup": {},
    "global_ep": {},
    "finetune": {},
}
"""Pruners, and the parts that are replaced in them."""


def measure(network: str, pruner: str) -> dict[str, Any]:
    """Take two updates after a freeze, and tell what the second one did."""
    device = simulated.install()
    model = SETTINGS[network].build().to(memory_format=torch.channels_last).to(device)
    name = "magnitude" if pruner == "finetune" else pruner.partition(",")[0]
    recipe = load_plugins(only=[]).recipe(name, parts=PRUNERS[pruner])
    names = prunable_names(model)
    if pruner == "finetune":
        net = MaskedNet(model, names)
        freeze(net, recipe, 0.05, {name: w.abs() for name, w in net.effective.items()})
    else:
        net = MaskedNet.learning(model, names, recipe, generator(0, "scores"))
        freeze(net, recipe, 0.05, recipe.scores.view(net.scores))
    optimizer = optimizers.make_optimizer(Plan(lr=0.1, weight_decay=1e-4), net.trainable())
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        with simulated.watched() as seen:
            net.step(optimizer)
    return {
        "network": network,
        "pruner": pruner,
        "layers": len(names),
        "kernels": seen.count,
        "waits": len(seen.waits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    given = parser.parse_args()
    rows = [measure(network, pruner) for network in NETWORKS for pruner in PRUNERS]
    if given.json:
        print(json.dumps(rows))
    else:
        print(lines([*rows[0]], [[str(value) for value in row.values()] for row in rows]))


if __name__ == "__main__":
    main()
