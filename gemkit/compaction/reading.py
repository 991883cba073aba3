"""From a step of the graph to what it does to channels; what is not certain is `Opaque`."""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node

from gemkit.compaction.layers import Norm, Product
from gemkit.compaction.signals import Signals, moving
from gemkit.compaction.steps import Flat, Opaque, Padded, Pointwise, Source, Stack, Step, Sum, Times
from gemkit.compaction.tracing import Trace, shape_of
from gemkit.models.blocks import Subsample
from gemkit.tensors import Tensors

_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.SiLU, nn.GELU, nn.Mish),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus),
)
_UNCHANGED = (
    *(nn.Identity, nn.Dropout, nn.Dropout2d, nn.MaxPool2d),
    *(nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)
"""Layers that give back a channel of one colour as it is, or in training a multiple of it."""
_CLIPPED = (nn.ReLU, nn.ReLU6, F.relu, F.relu6, F.relu_, torch.relu, torch.relu_, "relu", "relu_")
_FUNCTIONS = {
    *(F.relu, F.relu_, torch.relu, torch.relu_, F.relu6, F.leaky_relu, F.elu, F.silu, F.gelu),
    *(F.mish, F.hardswish, F.hardsigmoid, F.hardtanh, F.softplus),
    *(F.sigmoid, torch.sigmoid, F.tanh, torch.tanh),
}
_METHODS = {"relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_"}
_SUMS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_TIMES = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
_POOLS = {F.adaptive_avg_pool2d, F.max_pool2d}
_FLAT = {torch.flatten, "flatten"}
_VIEWS = {"view", "reshape"}


def read(node: Node, trace: Trace, known: Signals, masks: Tensors | None) -> Step:
    """Say what a step does; `masks` are those of the weights, if what is asked for is training."""
    shape = shape_of(node)
    if node.op == "placeholder" and shape is not None:
        return Source(node, moving(shape[1]))
    reads = node.all_input_nodes
    understood = all(one in known for one in reads) and shape is not None
    layer = trace.layer(node)
    step: Step | None = None
    if _asks_for_batch(node):
        step = Opaque(node, ())
    elif node.target in _VIEWS:
        step = _flat(node, known)
    elif isinstance(layer, nn.Conv2d | nn.Linear):
        step = _product(node, layer, trace, known, masks)
    elif understood and layer is not None:
        step = _layer(node, layer, trace, known, trains=masks is not None)
    elif understood and node.op in {"call_function", "call_method"}:
        step = _joined(node, known) or _function(node, known)
    return step or Opaque(node, reads)


def _product(
    node: Node,
    layer: nn.Conv2d | nn.Linear,
    trace: Trace,
    known: Signals,
    masks: Tensors | None,
) -> Step | None:
    """Understand a convolution over channels, or a linear layer over the last axis."""
    plain = type(layer) in {nn.Conv2d, nn.Linear} and trace.sole(node)
    shape, heard = shape_of(node.all_input_nodes[0]), known.get(node.all_input_nodes[0])
    if not plain or shape is None or len(node.all_input_nodes) != 1:
        return None
    axis = 1 if isinstance(layer, nn.Conv2d) else len(shape) - 1
    if (heard is not None and heard.axis != axis) or (axis == 1 and len(shape) not in {2, 4}):
        return None
    everything = torch.ones_like(layer.weight, dtype=torch.bool)
    mask = None if masks is None else masks.get(f"{node.target}.weight", everything)
    return Product(node, node.all_input_nodes[0], layer, mask)


def _layer(
    node: Node, layer: nn.Module, trace: Trace, known: Signals, *, trains: bool
) -> Step | None:
    """Understand the other layers."""
    read = node.all_input_nodes[0]
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        return _norm(node, layer, trace, known, trains=trains)
    if isinstance(layer, Subsample) and known[read].axis == 1 and trace.sole(node):
        return Padded(node, read, layer.before, layer.after)
    if type(layer) in _ACTIVATIONS:
        return Pointwise(node, read, layer)
    if type(layer) in _UNCHANGED:
        return Pointwise(node, read, _same)
    if type(layer) is nn.AvgPool2d and layer.divisor_override is None:
        edged = bool(_largest(layer.padding)) or layer.ceil_mode
        return Pointwise(node, read, _same, edged=edged)
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return _flat(node, known)
    return None


def _norm(
    node: Node,
    layer: nn.BatchNorm1d | nn.BatchNorm2d,
    trace: Trace,
    known: Signals,
    *,
    trains: bool,
) -> Step | None:
    """Understand batch norm as torch has it, and timm's, which applies an activation, too."""
    read = node.all_input_nodes[0]
    if known[read].axis != 1 or not trace.sole(node):
        return None
    if type(layer) in {nn.BatchNorm1d, nn.BatchNorm2d}:
        clipped = all(_clips(user, trace) for user in node.users)
        return Norm(node, read, layer, _same, trains=trains, clipped=clipped)
    act, drop = getattr(layer, "act", None), getattr(layer, "drop", None)
    whole = type(layer).__name__ == "BatchNormAct2d" and type(drop) is nn.Identity
    if not whole or type(act) not in {*_ACTIVATIONS, nn.Identity}:
        return None
    assert isinstance(act, nn.Module)
    clipped = type(act) in _CLIPPED
    return Norm(node, read, layer, act, trains=trains, clipped=clipped)


def _joined(node: Node, known: Signals) -> Step | None:
    """Understand sums, products and stacks of several values."""
    reads, signals = node.all_input_nodes, [known[one] for one in node.all_input_nodes]
    if node.target is torch.cat:
        parts = node.args[0]
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        ordered = isinstance(parts, list | tuple) and list(parts) == reads
        return Stack(node, reads) if ordered and axis == signals[0].axis == 1 else None
    if node.kwargs or list(node.args) != reads or len(reads) != 2 or not _alike(node, known):
        return None
    if node.target in _SUMS:
        return Sum(node, reads)
    return Times(node, reads) if node.target in _TIMES else None


def _alike(node: Node, known: Signals) -> bool:
    """Tell whether channels of the same number meet when values are joined."""
    signals = [known[one] for one in node.all_input_nodes]
    shapes = [shape_of(one) or () for one in [*node.all_input_nodes, node]]
    same_rank = len({len(shape) for shape in shapes}) == 1
    return same_rank and len({(one.axis, one.channels) for one in signals}) == 1


def _function(node: Node, known: Signals) -> Step | None:
    """Understand functions of one value, with numbers as their other arguments."""
    read, target = node.all_input_nodes[0], node.target
    alone = [one for one in node.args if isinstance(one, Node)] == [read] == node.all_input_nodes
    if not alone or node.args[0] is not read:
        return None
    if target in _FUNCTIONS or target in _METHODS or (target in _SUMS | _TIMES):
        return Pointwise(node, read, _applied(node))
    if target is F.dropout or target in _POOLS or target == "contiguous":
        return Pointwise(node, read, _same)
    if target in {"mean", torch.mean}:
        return _mean(node, known)
    return _flat(node, known) if target in _FLAT else None


def _applied(node: Node) -> Callable[[Tensor], Tensor]:
    """Return the function that a step applies to each number, with its other arguments."""
    rest, named = node.args[1:], {**node.kwargs, "inplace": False}
    if "inplace" not in node.kwargs:
        named.pop("inplace")
    function: Any = getattr(Tensor, node.target) if isinstance(node.target, str) else node.target

    def apply(value: Tensor) -> Tensor:
        result: Tensor = function(value.clone(), *rest, **named)
        return result

    return apply


def _mean(node: Node, known: Signals) -> Step | None:
    """Understand the mean over the pixels of each channel."""
    read = node.all_input_nodes[0]
    over = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    shape, axis = shape_of(read), known[read].axis
    assert shape is not None
    if not isinstance(over, list | tuple):
        over = [over]
    if not all(isinstance(one, int) for one in over):
        return None
    axes = {one % len(shape) for one in over if isinstance(one, int)}
    return Pointwise(node, read, _same) if axis == 1 and axes == {2, 3} else None


def _flat(node: Node, known: Signals) -> Step | None:
    """Understand an image that becomes a row, however that is spelled, for any number of images."""
    read = node.args[0]
    before, after = (shape_of(one) or () for one in (node.all_input_nodes[0], node))
    if node.op == "call_module":
        whole = True
    elif node.target in _VIEWS:
        whole = node.args[2:] == (-1,) and isinstance(node.args[1], Node)
    else:
        whole = node.args[1:] == (1,) or node.kwargs == {"start_dim": 1}
    images = isinstance(read, Node) and read in known and known[read].axis == 1
    if not whole or not images or len(after) != 2 or before[0] != after[0]:
        return None
    assert isinstance(read, Node)
    return Flat(node, read, after[1] // before[1])


def _asks_for_batch(node: Node) -> bool:
    """Tell whether a step asks how many images there are, and nothing about channels."""
    if node.op == "call_method" and node.target == "size":
        return node.args[1:] == (0,)
    sized = node.target is getattr and node.args[1:] == ("shape",)
    return sized and all(
        user.target is operator.getitem and user.args[1:] == (0,) for user in node.users
    )


def _clips(node: Node, trace: Trace) -> bool:
    """Tell whether a step is a ReLU, which passes nothing back at zero."""
    layer = trace.layer(node)
    return (type(layer) if layer is not None else node.target) in _CLIPPED


def _same(value: Tensor) -> Tensor:
    return value


def _largest(size: int | tuple[int, ...]) -> int:
    return max(size) if isinstance(size, tuple) else size
