"""Map nodes of the graph to operations on channels; a node that is not certain is `Opaque`."""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node

from gemkit.compaction import ops
from gemkit.compaction.channels import ChannelMap, varying
from gemkit.compaction.layers import CONVOLUTIONS, BatchNorm, ConvOrLinear, Layer
from gemkit.compaction.ops import Op
from gemkit.compaction.tracing import Trace, shape_of
from gemkit.core.tensors import Tensors
from gemkit.models.blocks import Subsample

_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.SiLU, nn.GELU, nn.Mish),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus),
)
_PRESERVING = (
    *(nn.Identity, nn.Dropout, nn.Dropout2d, nn.MaxPool1d, nn.MaxPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)
"""Layers that do not change a constant channel, or scale it in training."""
_RELUS = (nn.ReLU, nn.ReLU6, F.relu, F.relu6, F.relu_, torch.relu, torch.relu_, "relu", "relu_")
_FUNCTIONS = {
    *(F.relu, F.relu_, torch.relu, torch.relu_, F.relu6, F.leaky_relu, F.elu, F.silu, F.gelu),
    *(F.mish, F.hardswish, F.hardsigmoid, F.hardtanh, F.softplus),
    *(F.sigmoid, torch.sigmoid, F.tanh, torch.tanh),
}
_METHODS = {"relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_"}
_ADD = {operator.add, operator.iadd, torch.add, "add", "add_"}
_MULTIPLY = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
_POOLS = {F.adaptive_avg_pool2d, F.max_pool2d}
_FLATTEN = {torch.flatten, "flatten"}
_VIEWS = {"view", "reshape"}


def op_of(node: Node, trace: Trace, known: ChannelMap, masks: Tensors | None) -> Op:
    """Return the operation of a node; `masks` are the masks of the weights, for training."""
    shape = shape_of(node)
    if node.op == "placeholder" and shape is not None:
        return ops.Input(node, varying(shape[1]))
    inputs = node.all_input_nodes
    understood = all(source in known for source in inputs) and shape is not None
    layer = trace.layer(node)
    op: Op | None = None
    if _reads_batch_size(node):
        op = ops.Opaque(node, ())
    elif node.target in _VIEWS:
        op = _flatten(node, known)
    elif isinstance(layer, Layer):
        op = _conv_or_linear(node, layer, trace, known, masks)
    elif understood and layer is not None:
        op = _layer(node, layer, trace, known, trains=masks is not None)
    elif understood and node.op in {"call_function", "call_method"}:
        op = _combination(node, known) or _function(node, known)
    return op or ops.Opaque(node, inputs)


def _conv_or_linear(
    node: Node,
    layer: Layer,
    trace: Trace,
    known: ChannelMap,
    masks: Tensors | None,
) -> Op | None:
    """Classify a convolution over channels, or a linear layer over the last axis."""
    plain = type(layer) in {*CONVOLUTIONS, nn.Linear} and trace.used_once(node)
    shape, channels = shape_of(node.all_input_nodes[0]), known.get(node.all_input_nodes[0])
    if not plain or shape is None or len(node.all_input_nodes) != 1:
        return None
    convolves = isinstance(layer, CONVOLUTIONS)
    axis = 1 if convolves else len(shape) - 1
    if (channels is not None and channels.axis != axis) or (
        convolves and len(shape) != layer.weight.ndim
    ):
        return None
    dense = torch.ones_like(layer.weight, dtype=torch.bool)
    mask = None if masks is None else masks.get(f"{node.target}.weight", dense)
    return ConvOrLinear(node, node.all_input_nodes[0], layer, mask)


def _layer(
    node: Node, layer: nn.Module, trace: Trace, known: ChannelMap, *, trains: bool
) -> Op | None:
    """Classify the other layers."""
    read = node.all_input_nodes[0]
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        return _batch_norm(node, layer, trace, known, trains=trains)
    if isinstance(layer, Subsample) and known[read].axis == 1 and trace.used_once(node):
        return ops.PadChannels(node, read, layer.before, layer.after)
    if type(layer) in _ACTIVATIONS:
        return ops.ChannelWise(node, read, layer)
    if type(layer) in _PRESERVING:
        return ops.ChannelWise(node, read, _identity)
    if type(layer) is nn.AvgPool2d and layer.divisor_override is None:
        padded = bool(_largest(layer.padding)) or layer.ceil_mode
        return ops.ChannelWise(node, read, _identity, padded=padded)
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return _flatten(node, known)
    return None


def _batch_norm(
    node: Node,
    layer: nn.BatchNorm1d | nn.BatchNorm2d,
    trace: Trace,
    known: ChannelMap,
    *,
    trains: bool,
) -> Op | None:
    """Classify torch's batch norm, and timm's, which includes an activation."""
    read = node.all_input_nodes[0]
    if known[read].axis != 1 or not trace.used_once(node):
        return None
    if type(layer) in {nn.BatchNorm1d, nn.BatchNorm2d}:
        before_relu = all(_is_relu(user, trace) for user in node.users)
        return BatchNorm(node, read, layer, _identity, trains=trains, before_relu=before_relu)
    act, drop = getattr(layer, "act", None), getattr(layer, "drop", None)
    from_timm = type(layer).__name__ == "BatchNormAct2d" and type(drop) is nn.Identity
    if not from_timm or type(act) not in {*_ACTIVATIONS, nn.Identity}:
        return None
    assert isinstance(act, nn.Module)
    before_relu = type(act) in _RELUS
    return BatchNorm(node, read, layer, act, trains=trains, before_relu=before_relu)


def _combination(node: Node, known: ChannelMap) -> Op | None:
    """Classify sums, products and concatenations of several values."""
    inputs, channels = node.all_input_nodes, [known[source] for source in node.all_input_nodes]
    if node.target is torch.cat:
        parts = node.args[0]
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        ordered = isinstance(parts, list | tuple) and list(parts) == inputs
        return ops.Concat(node, inputs) if ordered and axis == channels[0].axis == 1 else None
    if node.kwargs or list(node.args) != inputs or len(inputs) != 2 or not _aligned(node, known):
        return None
    if node.target in _ADD:
        return ops.Add(node, inputs)
    return ops.Multiply(node, inputs) if node.target in _MULTIPLY else None


def _aligned(node: Node, known: ChannelMap) -> bool:
    """Whether the inputs have the same rank, channel axis and number of channels."""
    channels = [known[source] for source in node.all_input_nodes]
    shapes = [shape_of(value) or () for value in [*node.all_input_nodes, node]]
    same_rank = len({len(shape) for shape in shapes}) == 1
    return same_rank and len({(own.axis, own.size) for own in channels}) == 1


def _function(node: Node, known: ChannelMap) -> Op | None:
    """Classify functions of one value, with numbers as their other arguments."""
    read, target = node.all_input_nodes[0], node.target
    unary = [arg for arg in node.args if isinstance(arg, Node)] == [read] == node.all_input_nodes
    if not unary or node.args[0] is not read:
        return None
    if target in _FUNCTIONS or target in _METHODS or (target in _ADD | _MULTIPLY):
        return ops.ChannelWise(node, read, _elementwise(node))
    if target is F.dropout or target in _POOLS or target == "contiguous":
        return ops.ChannelWise(node, read, _identity)
    if target in {"mean", torch.mean}:
        return _mean(node, known)
    return _flatten(node, known) if target in _FLATTEN else None


def _elementwise(node: Node) -> Callable[[Tensor], Tensor]:
    """Return the elementwise function of a node, with its other arguments bound."""
    rest, named = node.args[1:], {**node.kwargs, "inplace": False}
    if "inplace" not in node.kwargs:
        named.pop("inplace")
    function: Any = getattr(Tensor, node.target) if isinstance(node.target, str) else node.target

    def apply(value: Tensor) -> Tensor:
        result: Tensor = function(value.clone(), *rest, **named)
        return result

    return apply


def _mean(node: Node, known: ChannelMap) -> Op | None:
    """Classify the mean over the pixels of each channel."""
    read = node.all_input_nodes[0]
    over = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    shape, axis = shape_of(read), known[read].axis
    assert shape is not None
    if not isinstance(over, list | tuple):
        over = [over]
    if not all(isinstance(dim, int) for dim in over):
        return None
    axes = {dim % len(shape) for dim in over if isinstance(dim, int)}
    return ops.ChannelWise(node, read, _identity) if axis == 1 and axes == {2, 3} else None


def _flatten(node: Node, known: ChannelMap) -> Op | None:
    """Classify modules, functions and views that flatten images of any batch size."""
    read = node.args[0]
    before, after = (shape_of(value) or () for value in (node.all_input_nodes[0], node))
    if node.op == "call_module":
        flattens = True
    elif node.target in _VIEWS:
        flattens = node.args[2:] == (-1,) and isinstance(node.args[1], Node)
    else:
        flattens = node.args[1:] == (1,) or node.kwargs == {"start_dim": 1}
    images = isinstance(read, Node) and read in known and known[read].axis == 1
    if not flattens or not images or len(after) != 2 or before[0] != after[0]:
        return None
    assert isinstance(read, Node)
    return ops.Flatten(node, read, after[1] // before[1])


def _reads_batch_size(node: Node) -> bool:
    """Whether a node reads the batch size and nothing about channels."""
    if node.op == "call_method" and node.target == "size":
        return node.args[1:] == (0,)
    reads_shape = node.target is getattr and node.args[1:] == ("shape",)
    return reads_shape and all(
        user.target is operator.getitem and user.args[1:] == (0,) for user in node.users
    )


def _is_relu(node: Node, trace: Trace) -> bool:
    """Whether a node is a ReLU, whose gradient at zero is zero."""
    layer = trace.layer(node)
    return (type(layer) if layer is not None else node.target) in _RELUS


def _identity(value: Tensor) -> Tensor:
    return value


def _largest(size: int | tuple[int, ...]) -> int:
    return max(size) if isinstance(size, tuple) else size
