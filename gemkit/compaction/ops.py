"""How each supported operation of the forward pass treats channels."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx import Node

from gemkit.compaction.channels import ChannelMap, Channels, KeptChannels, make_channels
from gemkit.core.tensors import Tensors


class Op(ABC):
    """One operation: the nodes it reads, and how channels pass through it."""

    def __init__(self, node: Node, inputs: Sequence[Node]) -> None:
        self.node = node
        self.inputs = tuple(inputs)

    @abstractmethod
    def channels(self, known: ChannelMap) -> Channels | None:
        """Return the channels of the result; None if nothing is known about them."""

    @abstractmethod
    def propagate(self, known: ChannelMap, kept: KeptChannels) -> None:
        """Keep all channels that the kept ones depend on."""

    def places(self, kept: KeptChannels) -> Tensors:
        """Return the flat indices of the kept entries of each of the layer's tensors."""
        return {}

    def settings(self, kept: KeptChannels) -> dict[str, int]:
        """Return the layer's size attributes after compaction."""
        return {}


class Opaque(Op):
    """An operation that is not understood: all channels of its inputs and its result are kept."""

    def channels(self, known: ChannelMap) -> Channels | None:
        """Return None."""
        return None

    def propagate(self, known: ChannelMap, kept: KeptChannels) -> None:
        """Keep every channel that it reads."""
        for node in self.inputs:
            kept.add_all(node)


class Input(Op):
    """The images: all of their channels are kept."""

    def __init__(self, node: Node, channels: Channels) -> None:
        super().__init__(node, ())
        self._channels = channels

    def channels(self, known: ChannelMap) -> Channels | None:
        """Return the channels of the images."""
        return self._channels

    def propagate(self, known: ChannelMap, kept: KeptChannels) -> None:
        """Keep all channels."""
        kept.add_all(self.node)


class ChannelWise(Op):
    """A function within each channel: activations, poolings, means."""

    def __init__(
        self, node: Node, read: Node, function: Callable[[Tensor], Tensor], *, padded: bool = False
    ) -> None:
        super().__init__(node, [read])
        self.function = function
        self.padded = padded  # the function averages over zeros around the image

    def channels(self, known: ChannelMap) -> Channels | None:
        """Apply the function to the constants."""
        axis, constant, value = known[self.inputs[0]]
        if self.padded:
            constant = constant & (value == 0)
        return make_channels(axis, constant, self.function(value.clone()))  # may be in place

    def propagate(self, known: ChannelMap, kept: KeptChannels) -> None:
        """Keep the same channels of the input and the result."""
        _keep_union(kept, [*self.inputs, self.node])


class Add(Op):
    """The sum of values, channel by channel."""

    def channels(self, known: ChannelMap) -> Channels | None:
        """A channel is constant if it is constant in all inputs."""
        inputs = [known[node] for node in self.inputs]
        constant = torch.stack([own.constant for own in inputs]).all(0)
        return make_channels(inputs[0].axis, constant, sum(own.value for own in inputs))  # type: ignore[arg-type]

    def propagate(self, known: ChannelMap, kept: KeptChannels) -> None:
        """Keep the same channels of all inputs and the result."""
        _keep_union(kept, [*self.inputs, self.node])


class Multiply(Add):
    """The product of two values, channel by channel: gates and channel attention."""

    def channels(self, known: ChannelMap) -> Channels | None:
        """A channel is also constant if it is zero in one input."""
        first, second = (known[node] for node in self.inputs)
        zero = [channels.constant & (channels.value == 0) for channels in (first, second)]
        constant = (first.constant & second.constant) | zero[0] | zero[1]
        return make_channels(first.axis, constant, first.value * second.value)


class Flatten(Op):
    """An image flattened to a row: each channel becomes as many features as it has pixels."""

    def __init__(self, node: Node, read: Node, pixels: int) -> None:
        super().__init__(node, [read])
        self.pixels = pixels

    def channels(self, known: ChannelMap) -> Channels | None:
        """Every pixel of a constant channel is constant."""
        _, constant, value = known[self.inputs[0]]
        repeated = constant.repeat_interleave(self.pixels), value.repeat_interleave(self.pixels)
        return make_channels(1, *repeated)

    def propagate(self, known: ChannelMap, kept: KeptChannels) -> None:
        """Keep all pixels of a channel or none."""
        (read,) = self.inputs
        kept.add(read, kept.masks[self.node].reshape(-1, self.pixels).any(1))
        kept.add(self.node, kept.masks[read].repeat_interleave(self.pixels))


class Concat(Op):
    """Values concatenated along the channels."""

    def channels(self, known: ChannelMap) -> Channels | None:
        """Concatenate the channels of the inputs."""
        inputs = [known[node] for node in self.inputs]
        constant = torch.cat([own.constant for own in inputs])
        return make_channels(inputs[0].axis, constant, torch.cat([own.value for own in inputs]))

    def propagate(self, known: ChannelMap, kept: KeptChannels) -> None:
        """Keep a channel in both the input and the result, or in neither."""
        sizes = [known[node].size for node in self.inputs]
        for node, mask in zip(self.inputs, torch.split(kept.masks[self.node], sizes), strict=True):
            kept.add(node, mask)
        kept.add(self.node, torch.cat([kept.masks[node] for node in self.inputs]))


class PadChannels(Op):
    """A shortcut that adds zero channels before and after those it reads."""

    def __init__(self, node: Node, read: Node, before: int, after: int) -> None:
        super().__init__(node, [read])
        self.before, self.after = before, after

    def channels(self, known: ChannelMap) -> Channels | None:
        """The added channels are constant zeros."""
        axis, constant, value = known[self.inputs[0]]
        sizes = (self.before, self.after)
        added = [torch.ones(size, dtype=torch.bool) for size in sizes]
        zeros = [torch.zeros(size, dtype=value.dtype) for size in sizes]
        return Channels(
            axis, torch.cat([added[0], constant, added[1]]), torch.cat([zeros[0], value, zeros[1]])
        )

    def propagate(self, known: ChannelMap, kept: KeptChannels) -> None:
        """Keep the same channels of the input and the middle of the result."""
        (read,) = self.inputs
        kept.add(read, self._split(kept)[1])
        mask = torch.zeros_like(kept.masks[self.node])
        mask[self.before : len(mask) - self.after] = kept.masks[read]
        kept.add(self.node, mask)

    def settings(self, kept: KeptChannels) -> dict[str, int]:
        """Add only the zero channels that are kept."""
        before, _, after = self._split(kept)
        return {"before": int(before.sum()), "after": int(after.sum())}

    def _split(self, kept: KeptChannels) -> tuple[Tensor, ...]:
        mask = kept.masks[self.node]
        return torch.split(mask, [self.before, len(mask) - self.before - self.after, self.after])


def _keep_union(kept: KeptChannels, nodes: Sequence[Node]) -> None:
    """Keep a channel in all nodes if it is kept in one."""
    union = torch.stack([kept.masks[node] for node in nodes]).any(0)
    for node in nodes:
        kept.add(node, union)
