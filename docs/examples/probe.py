"""|w · dL/dw| by hand; in a search, gemkit makes the probe."""

import torch

from gemkit import Probe, prunable_names
from gemkit.testing import tiny_data, tiny_net

model = tiny_net()
weights = {name: model.get_parameter(name).detach() for name in prunable_names(model)}
alive = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}
probe = Probe(model, weights, alive, batches=list(tiny_data().train.batches(16)))

leaves = probe.leaves()
gradient = probe.gradient(leaves)
importance = {name: (weight * gradient[name]).abs() for name, weight in leaves.items()}
assert importance["0.weight"].shape == model[0].weight.shape

doubled = {name: 2 * weight for name, weight in leaves.items()}
assert probe.loss(doubled, 0) != probe.loss(leaves, 0)
