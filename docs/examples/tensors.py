"""The prunable weights of a network, and a mask that keeps the positive ones."""

from gemkit import prunable_names
from gemkit.testing import tiny_net

model = tiny_net()
weights = {name: model.get_parameter(name).detach() for name in prunable_names(model)}
masks = {name: weight > 0 for name, weight in weights.items()}
assert list(masks) == ["0.weight", "3.weight", "5.weight", "8.weight"]
