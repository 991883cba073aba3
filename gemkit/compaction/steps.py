"""What a step of the forward pass does to channels, for every kind of step that is understood."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx import Node

from gemkit.compaction.signals import Kept, Signal, Signals, known_still
from gemkit.tensors import Tensors


class Step(ABC):
    """One step: what it reads, and how channels pass through it."""

    def __init__(self, node: Node, reads: Sequence[Node]) -> None:
        self.node = node
        self.reads = tuple(reads)

    @abstractmethod
    def signal(self, known: Signals) -> Signal | None:
        """Say what is known about the channels of the result; None where that is nothing."""

    @abstractmethod
    def spread(self, known: Signals, kept: Kept) -> None:
        """Let those channels stay, too, that are needed by what stays already."""

    def places(self, kept: Kept) -> Tensors:
        """Say where in each of the layer's tensors lies what stays, as positions in C order."""
        return {}

    def settings(self, kept: Kept) -> dict[str, int]:
        """Return the attributes of the layer that tell its size."""
        return {}


class Opaque(Step):
    """A step that is not understood: it gets all that it ever got, and all it gives stays."""

    def signal(self, known: Signals) -> Signal | None:
        """Promise nothing."""
        return None

    def spread(self, known: Signals, kept: Kept) -> None:
        """Keep every channel that it reads."""
        for node in self.reads:
            kept.pin(node)


class Source(Step):
    """The images: all of their channels stay."""

    def __init__(self, node: Node, signal: Signal) -> None:
        super().__init__(node, ())
        self._signal = signal

    def signal(self, known: Signals) -> Signal | None:
        """Any pixel may be anything."""
        return self._signal

    def spread(self, known: Signals, kept: Kept) -> None:
        """Keep the images as they are."""
        kept.pin(self.node)


class Pointwise(Step):
    """The same function on every number, or within each channel: activations, poolings, means."""

    def __init__(
        self, node: Node, read: Node, function: Callable[[Tensor], Tensor], *, edged: bool = False
    ) -> None:
        super().__init__(node, [read])
        self.function = function
        self.edged = edged  # zeros around the image get into the result

    def signal(self, known: Signals) -> Signal | None:
        """Apply the function to what is still."""
        axis, still, value = known[self.reads[0]]
        if self.edged:
            still = still & (value == 0)
        return known_still(axis, still, self.function(value.clone()))  # it may work in place

    def spread(self, known: Signals, kept: Kept) -> None:
        """Channels stay or go together with those they are made of."""
        _link(kept, [*self.reads, self.node])


class Sum(Step):
    """Channels of the same number, added up."""

    def signal(self, known: Signals) -> Signal | None:
        """What is still in all of them is still in the sum."""
        signals = [known[node] for node in self.reads]
        still = torch.stack([one.still for one in signals]).all(0)
        return known_still(signals[0].axis, still, sum(one.value for one in signals))  # type: ignore[arg-type]

    def spread(self, known: Signals, kept: Kept) -> None:
        """A channel stays in the sum and in everything that is added, or in nothing of it."""
        _link(kept, [*self.reads, self.node])


class Times(Sum):
    """Channels of the same number, multiplied: gates and attention over channels."""

    def signal(self, known: Signals) -> Signal | None:
        """What is zero in one of them stays zero, whatever the others are."""
        first, second = (known[node] for node in self.reads)
        zero = [one.still & (one.value == 0) for one in (first, second)]
        still = (first.still & second.still) | zero[0] | zero[1]
        return known_still(first.axis, still, first.value * second.value)


class Flat(Step):
    """An image made one row: every channel becomes a run of as many entries as it has pixels."""

    def __init__(self, node: Node, read: Node, pixels: int) -> None:
        super().__init__(node, [read])
        self.pixels = pixels

    def signal(self, known: Signals) -> Signal | None:
        """Every pixel of a still channel is still."""
        _, still, value = known[self.reads[0]]
        spread = still.repeat_interleave(self.pixels), value.repeat_interleave(self.pixels)
        return known_still(1, *spread)

    def spread(self, known: Signals, kept: Kept) -> None:
        """The pixels of a channel stay together."""
        (read,) = self.reads
        kept.widen(read, kept.masks[self.node].reshape(-1, self.pixels).any(1))
        kept.widen(self.node, kept.masks[read].repeat_interleave(self.pixels))


class Stack(Step):
    """Values put one after the other, channel by channel."""

    def signal(self, known: Signals) -> Signal | None:
        """Every channel is what it was."""
        signals = [known[node] for node in self.reads]
        still = torch.cat([one.still for one in signals])
        return known_still(signals[0].axis, still, torch.cat([one.value for one in signals]))

    def spread(self, known: Signals, kept: Kept) -> None:
        """A channel stays in the stack where it stays in its part."""
        sizes = [known[node].channels for node in self.reads]
        for node, own in zip(self.reads, torch.split(kept.masks[self.node], sizes), strict=True):
            kept.widen(node, own)
        kept.widen(self.node, torch.cat([kept.masks[node] for node in self.reads]))


class Padded(Step):
    """A shortcut that puts channels of zeros before and behind those it reads."""

    def __init__(self, node: Node, read: Node, before: int, after: int) -> None:
        super().__init__(node, [read])
        self.before, self.after = before, after

    def signal(self, known: Signals) -> Signal | None:
        """What is added is still, and zero."""
        axis, still, value = known[self.reads[0]]
        sides = (self.before, self.after)
        added = [torch.ones(size, dtype=torch.bool) for size in sides]
        zeros = [torch.zeros(size, dtype=value.dtype) for size in sides]
        return Signal(
            axis, torch.cat([added[0], still, added[1]]), torch.cat([zeros[0], value, zeros[1]])
        )

    def spread(self, known: Signals, kept: Kept) -> None:
        """The channels in the middle stay with those they are copied from."""
        (read,) = self.reads
        kept.widen(read, self._parts(kept)[1])
        nothing = torch.zeros_like(kept.masks[self.node])
        nothing[self.before : len(nothing) - self.after] = kept.masks[read]
        kept.widen(self.node, nothing)

    def settings(self, kept: Kept) -> dict[str, int]:
        """Add as many channels of zeros as stay."""
        before, _, after = self._parts(kept)
        return {"before": int(before.sum()), "after": int(after.sum())}

    def _parts(self, kept: Kept) -> tuple[Tensor, ...]:
        own = kept.masks[self.node]
        return torch.split(own, [self.before, len(own) - self.before - self.after, self.after])


def _link(kept: Kept, nodes: Sequence[Node]) -> None:
    """Let channels of the same number stay everywhere if they stay anywhere."""
    union = torch.stack([kept.masks[node] for node in nodes]).any(0)
    for node in nodes:
        kept.widen(node, union)
