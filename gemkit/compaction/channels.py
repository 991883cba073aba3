"""What is known about the channels of each value in the forward pass."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import Node


class Channels(NamedTuple):
    """The channels of a value: their axis, and which of them are constant.

    `constant` marks the channels that have the same `value` in every pixel of every image. A node
    without `Channels` is one that is not understood: all of its channels are kept.
    """

    axis: int
    constant: Tensor
    value: Tensor

    @property
    def size(self) -> int:
        """The number of channels."""
        return len(self.constant)

    @property
    def nonzero(self) -> Tensor:
        """The constant channels whose value is not zero."""
        return self.constant & (self.value != 0)


ChannelMap = Mapping[Node, Channels]


def varying(size: int, axis: int = 1) -> Channels:
    """Return channels of which none is known to be constant."""
    constant = torch.zeros(size, dtype=torch.bool)
    return Channels(axis, constant, torch.zeros(size, dtype=torch.float64))


def make_channels(axis: int, constant: Tensor, value: Tensor) -> Channels:
    """Return channels; the value of those that are not constant is set to 0."""
    return Channels(axis, constant, torch.where(constant, value, 0.0))


class KeptChannels:
    """The channels of each value that are kept; the sets only grow."""

    def __init__(self, known: ChannelMap) -> None:
        self.masks = {
            node: torch.zeros(channels.size, dtype=torch.bool) for node, channels in known.items()
        }

    def of(self, node: Node, size: int) -> Tensor:
        """Return the kept channels of a value; all of them if it is not understood."""
        mask = self.masks.get(node)
        return torch.ones(size, dtype=torch.bool) if mask is None else mask

    def add(self, node: Node, channels: Tensor) -> None:
        """Keep these channels too."""
        if node in self.masks:
            self.masks[node] = self.masks[node] | channels

    def add_all(self, node: Node) -> None:
        """Keep all channels of a value."""
        if node in self.masks:
            self.masks[node] = torch.ones_like(self.masks[node])

    def count(self) -> int:
        """Count the kept channels of all values."""
        return sum(int(mask.sum()) for mask in self.masks.values())
