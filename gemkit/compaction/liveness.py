"""Which channels a network can do without: nothing reaches them, or they reach nothing."""

from typing import NamedTuple

import torch
from torch import nn
from torch.fx import Node

from gemkit.compaction.reading import read
from gemkit.compaction.signals import Kept, Signal, known_still
from gemkit.compaction.steps import Opaque, Step
from gemkit.compaction.tracing import Shape, traced
from gemkit.tensors import Tensors


class Anatomy(NamedTuple):
    """The steps of a forward pass, what is known about their channels, and which of them stay.

    What stays computes exactly what it did: everything it depends on stays, too, or is still.
    """

    steps: list[Step]
    signals: dict[Node, Signal]
    kept: Kept


def anatomy(model: nn.Module, shape: Shape, masks: Tensors | None) -> Anatomy:
    """Find what stays of a network whose weights are under their masks.

    Without `masks` for the network as it is, in evaluation. With them for a network in training,
    where a channel is still only if it is zero, and stays so whatever is learned.
    """
    trace = traced(model, shape, training=masks is not None)
    signals: dict[Node, Signal] = {}
    steps: list[Step] = []
    for node in trace.nodes:
        step = read(node, trace, signals, masks)
        steps.append(step)
        signal = step.signal(signals)
        if signal is not None and masks is not None:  # any other number might learn
            signal = known_still(signal.axis, signal.still & ~signal.shifted, signal.value)
        if signal is not None:
            signals[node] = signal
    return Anatomy(steps, signals, _needed(steps, signals))


def _needed(steps: list[Step], signals: dict[Node, Signal]) -> Kept:
    """Spread backwards from the result until nothing more is needed.

    A value keeps at least one channel, for there are no layers without any.
    """
    kept, count = Kept(signals), -1
    while count != kept.count():
        count = kept.count()
        for step in reversed(steps):
            step.spread(signals, kept)
        if count == kept.count():
            for node, mask in kept.masks.items():
                if not mask.any():
                    kept.widen(node, torch.arange(len(mask)) == 0)
    return kept


def untouched(parts: Anatomy) -> list[str]:
    """Name the steps where understanding ends, around which everything stays."""
    return [
        step.node.name
        for step in parts.steps
        if isinstance(step, Opaque) and step.node.op != "output"
        if any(node in parts.signals for node in step.reads)
    ]
