"""What is known about the channels of a value on its way through the network."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import Node


class Signal(NamedTuple):
    """The channels of a value: where they lie, which of them no image can change, and to what.

    `still` marks the channels that are one number for every image, in every pixel; `value` is that
    number. A value without a signal is one whose channels are not understood: all of it stays.
    """

    axis: int
    still: Tensor
    value: Tensor

    @property
    def channels(self) -> int:
        """How many there are."""
        return len(self.still)

    @property
    def shifted(self) -> Tensor:
        """The still channels that are not zero, whose number somebody has to carry on."""
        return self.still & (self.value != 0)


Signals = Mapping[Node, Signal]


def moving(channels: int, axis: int = 1) -> Signal:
    """Return the signal of which nothing is known but its size."""
    still = torch.zeros(channels, dtype=torch.bool)
    return Signal(axis, still, torch.zeros(channels, dtype=torch.float64))


def known_still(axis: int, still: Tensor, value: Tensor) -> Signal:
    """Return a signal whose value is zero wherever it is not still."""
    return Signal(axis, still, torch.where(still, value, 0.0))


class Kept:
    """Which channels of every value stay; the sets only ever grow."""

    def __init__(self, signals: Signals) -> None:
        self.masks = {
            node: torch.zeros(signal.channels, dtype=torch.bool) for node, signal in signals.items()
        }

    def of(self, node: Node, channels: int) -> Tensor:
        """Return which channels of a value stay; all of one that is not understood."""
        mask = self.masks.get(node)
        return torch.ones(channels, dtype=torch.bool) if mask is None else mask

    def widen(self, node: Node, channels: Tensor) -> None:
        """Let these stay, too."""
        if node in self.masks:
            self.masks[node] = self.masks[node] | channels

    def pin(self, node: Node) -> None:
        """Let all of a value stay."""
        if node in self.masks:
            self.masks[node] = torch.ones_like(self.masks[node])

    def count(self) -> int:
        """Count all that stays."""
        return sum(int(mask.sum()) for mask in self.masks.values())
