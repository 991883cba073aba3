"""Whole input channels: a channel is pruned with all kernels that read it."""

import torch

from gemkit import Structure


class Inputs(Structure):
    """Input channels of convolutions and linear layers."""

    name = "inputs"

    def fold(self, weight):
        # One pool; a unit is a channel, with what every output takes from it. A copy will do.
        return weight.transpose(0, 1).flatten(1).unsqueeze(0)

    def fits(self, shape):
        return len(shape) >= 2 and shape[1] > 3  # not the first layer, whose inputs are colours


weight = torch.arange(24.0).view(2, 4, 3)
alive = {"a": torch.ones(2, 4, 3, dtype=torch.bool)}
assert Inputs().fold(weight).shape == (1, 4, 6)
mask = Inputs().select({"a": weight}, alive, {("a",): 12}, density=0.5)["a"]
assert mask.any(2).any(0).tolist() == [False, False, True, True]
