"""Find the channels that a network needs: the others receive nothing or are never used."""

from typing import NamedTuple

import torch
from torch import nn
from torch.fx import Node

from gemkit.compaction.channels import Channels, KeptChannels, make_channels
from gemkit.compaction.classify import op_of
from gemkit.compaction.ops import Op, Opaque
from gemkit.compaction.tracing import Shape, traced
from gemkit.core.tensors import Tensors


class Analysis(NamedTuple):
    """The operations of a forward pass, what is known about their channels, and those to keep.

    Kept channels compute exactly the same as before: all they depend on is kept or constant.
    """

    ops: list[Op]
    channels: dict[Node, Channels]
    kept: KeptChannels


def analyze(model: nn.Module, shape: Shape, masks: Tensors | None) -> Analysis:
    """Find the channels to keep of a network whose weights are masked.

    Without `masks`, for the network in evaluation. With `masks`, for training, where a channel is
    constant only if it is zero and remains so whatever is learned.
    """
    trace = traced(model, shape, training=masks is not None)
    known: dict[Node, Channels] = {}
    ops: list[Op] = []
    for node in trace.nodes:
        op = op_of(node, trace, known, masks)
        ops.append(op)
        channels = op.channels(known)
        if channels is not None and masks is not None:  # other constants may change in training
            zero = channels.constant & ~channels.nonzero
            channels = make_channels(channels.axis, zero, channels.value)
        if channels is not None:
            known[node] = channels
    return Analysis(ops, known, _needed(ops, known))


def _needed(ops: list[Op], known: dict[Node, Channels]) -> KeptChannels:
    """Propagate backwards from the output until nothing more is needed.

    At least one channel of each value is kept, because layers cannot be empty.
    """
    kept, count = KeptChannels(known), -1
    while count != kept.count():
        count = kept.count()
        for op in reversed(ops):
            op.propagate(known, kept)
        if count == kept.count():
            for node, mask in kept.masks.items():
                if not mask.any():
                    kept.add(node, torch.arange(len(mask)) == 0)
    return kept


def opaque_steps(analysis: Analysis) -> list[str]:
    """Name the operations that are not understood, around which all channels are kept."""
    return [
        op.node.name
        for op in analysis.ops
        if isinstance(op, Opaque) and op.node.op != "output"
        if any(node in analysis.channels for node in op.inputs)
    ]
