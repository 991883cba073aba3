"""Hidden units of a network: which channels carry one unit, and which units can change places.

Tracing (`gemkit.compaction`) shows what each operation does to channels. A unit is
an output channel of a layer, together with all channels made of it alone: behind norms and
activations, in sums with a shortcut, in a flattened image. Two units can change places if they
occur in the same way in the same values.
"""

from collections import Counter

import torch
from torch import Tensor, nn
from torch.fx import Node

from gemkit.compaction.layers import BatchNorm, ConvOrLinear
from gemkit.compaction.liveness import Analysis, analyze, opaque_steps
from gemkit.compaction.ops import (
    Add,
    ChannelWise,
    Concat,
    Flatten,
    Input,
    Op,
    Opaque,
    PadChannels,
)
from gemkit.compaction.tracing import Shape
from gemkit.core.errors import CheckError, CompactionError, some
from gemkit.core.tensors import Tensors

Orders = dict[Node, Tensor]
"""For every value of the forward pass, which channel comes to each place."""


class Units:
    """The units of a traced network, as a number for every channel of every value.

    Units joined by a sum have one number, which `_root` finds.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._parents: list[int] = []
        self.of: dict[Node, list[int]] = {}
        for op in analysis.ops:
            if op.node in analysis.channels:
                self.of[op.node] = self._numbers(op, analysis.channels[op.node].size)
        self.of = {node: [self._root(unit) for unit in own] for node, own in self.of.items()}
        self.classes = self._exchangeable(analysis)

    def _numbers(self, op: Op, channels: int) -> list[int]:
        """Return the unit of every channel of a step's result."""
        reads = [self.of[read] for read in op.inputs if read in self.of]
        match op:
            case ConvOrLinear() if reads and _is_depthwise(op):
                outputs = len(op.weight) // op.groups
                return [unit for unit in reads[0] for _ in range(outputs)]
            case ConvOrLinear() | Input():
                return self._new(channels)
            case BatchNorm() | ChannelWise():
                return reads[0]
            case Add():
                for one, *others in zip(*reads, strict=True):
                    for other in others:
                        self._parents[self._root(other)] = self._root(one)
                return reads[0]
            case Flatten():
                return [unit for unit in reads[0] for _ in range(op.pixels)]
            case Concat():
                return [unit for own in reads for unit in own]
            case PadChannels():
                return [*self._new(op.before), *reads[0], *self._new(op.after)]
        raise NotImplementedError(type(op).__name__)

    def _new(self, count: int) -> list[int]:
        numbers = list(range(len(self._parents), len(self._parents) + count))
        self._parents += numbers
        return numbers

    def _root(self, unit: int) -> int:
        while self._parents[unit] != unit:
            self._parents[unit] = unit = self._parents[self._parents[unit]]
        return unit

    def _exchangeable(self, analysis: Analysis) -> list[list[int]]:
        """Group units that occur equally often in the same values, and in the same groups.

        Inputs, outputs and everything that an operation reads which is not understood stay.
        """
        marks: dict[int, list[object]] = {unit: [] for own in self.of.values() for unit in own}
        for number, own in enumerate(self.of.values()):
            for unit, count in Counter(own).items():
                marks[unit].append((number, count))
        for number, op in enumerate(analysis.ops):
            if isinstance(op, Opaque | Input):
                for node in (op.node, *op.inputs):
                    for unit in self.of.get(node, ()):
                        marks[unit].append(("fixed", unit))
            elif isinstance(op, ConvOrLinear) and op.groups > 1 and not self._is_tied(op):
                for node in (op.node, op.inputs[0]):
                    own = self.of.get(node, [])
                    for place, unit in enumerate(own):
                        marks[unit].append((number, "group", place * op.groups // len(own)))
        classes: dict[frozenset[object], list[int]] = {}
        for unit, own_marks in marks.items():
            classes.setdefault(frozenset(own_marks), []).append(unit)
        return [units for units in classes.values() if len(units) > 1]

    def _is_tied(self, op: ConvOrLinear) -> bool:
        """Whether a convolution's outputs are the units of its inputs."""
        return op.inputs[0] in self.of and _is_depthwise(op)

    def orders(self, images: dict[int, int]) -> Orders:
        """Put every unit in the places of another; `images` says which comes to its places."""
        orders = {}
        for node, own in self.of.items():
            places: dict[int, list[int]] = {}
            for place, unit in enumerate(own):
                places.setdefault(unit, []).append(place)
            order = [0] * len(own)
            for unit, mine in places.items():
                for place, source in zip(mine, places[images.get(unit, unit)], strict=True):
                    order[place] = source
            orders[node] = torch.tensor(order)
        return orders


def _is_depthwise(op: ConvOrLinear) -> bool:
    """Whether every output reads one input alone, of all there are."""
    return op.groups == op.in_channels > 1


def hidden_units(model: nn.Module, shape: Shape) -> tuple[Analysis, Units]:
    """Trace a network and find its units, or say why none of them can change places."""
    name = type(model).__name__
    try:
        analysis = analyze(model.double(), shape, None)
    except CompactionError as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise CheckError(
            f"the forward pass of {name} cannot be traced ({reason}), so it is unknown which "
            "channels feed which layers; leave this check out"
        ) from error
    units = Units(analysis)
    if not units.classes:
        unknown = opaque_steps(analysis)
        why = f"what {some(unknown)} do to channels is unknown" if unknown else "it has none"
        raise CheckError(f"no hidden units of {name} can be permuted: {why}; leave this check out")
    return analysis, units


def reordered(tensors: Tensors, analysis: Analysis, orders: Orders) -> Tensors:
    """Return the tensors of a network, or its masks, with all units in another order."""
    new = dict(tensors)
    for op in analysis.ops:
        path = str(op.node.target)
        if isinstance(op, ConvOrLinear):
            rows, columns = _weight_order(op, orders)
            names = {"weight": (rows[:, None], columns), "bias": (rows,)}
        elif isinstance(op, BatchNorm):
            own = (orders[op.node],)
            names = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), own)
        else:
            continue
        for short, order in names.items():
            if (name := f"{path}.{short}") in tensors:
                new[name] = tensors[name][order]
    return new


def _weight_order(op: ConvOrLinear, orders: Orders) -> tuple[Tensor, Tensor]:
    """Say which output and which input, counted within its group, comes to each place."""
    size = op.in_channels // op.groups
    inputs = orders.get(op.inputs[0], torch.arange(op.in_channels)) % size
    outputs = len(op.weight) // op.groups
    columns = inputs.reshape(op.groups, size).repeat_interleave(outputs, 0)
    return orders[op.node], columns
