"""Build a ticket's network without unused channels: smaller, and the same function."""

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gemkit.compaction.layers import BatchNorm, ConvOrLinear
from gemkit.compaction.liveness import Analysis, analyze, opaque_steps
from gemkit.compaction.ops import Op
from gemkit.compaction.slicing import gather, resized_copy, scatter
from gemkit.compaction.tracing import Shape, example_inputs
from gemkit.core.errors import CompactionError
from gemkit.core.memory import during
from gemkit.core.tensors import Tensors, as_input
from gemkit.models.check import check_model, own_copy
from gemkit.tickets.ticket import Ticket

_TOLERANCE = 1e-9
"""Allowed difference of outputs in float64, relative to the largest output or 1."""
_ROUNDING_STEPS = 1e3
"""Allowed difference if folded constants are rounded to the network's dtype, in its epsilon."""


class Width(NamedTuple):
    """The number of output channels of a layer, kept and before."""

    name: str
    kept: int
    before: int


class ZeroChannels(NamedTuple):
    """Channels of a batch norm that are zero in every batch, and the norm's momentum."""

    channels: Tensor
    momentum: float | None

    def decay_(self, state: Tensors, norm: str, start: Tensors) -> None:
        """Decay their running statistics as if the norm had seen batches of zeros."""
        counter = f"{norm}.num_batches_tracked"
        before, now = int(start[counter]), int(state[counter])
        if now == before:
            return
        factor = before / now if self.momentum is None else (1 - self.momentum) ** (now - before)
        for name in (f"{norm}.running_mean", f"{norm}.running_var"):
            state[name] = torch.where(self.channels, state[name] * factor, state[name])


@dataclass(frozen=True, eq=False)
class Compact:
    """A smaller network with its ticket, and what is needed to expand it again.

    `model` holds the ticket's weights and has the original class. `ticket` masks its remaining
    weights. `places` maps every smaller tensor to the flat indices of its entries in the original.
    """

    model: nn.Module
    ticket: Ticket
    original: Ticket
    places: Tensors
    settings: dict[str, dict[str, int]]
    """The new sizes of layers, by name."""
    training: bool
    zero_channels: dict[str, ZeroChannels]
    """Removed channels of batch norms that are zero in training, by name of the norm."""
    carried: int
    """The number of layers with folded constants of removed channels."""
    untouched: list[str]
    """The operations around which all channels are kept."""

    @cached_property
    def widths(self) -> list[Width]:
        """The widths of the prunable layers."""
        old = self.original.state
        return [
            Width(name, len(self.ticket.state[name]), len(old[name])) for name in self.ticket.mask
        ]

    def expand(self, ticket: Ticket) -> Ticket:
        """Return a ticket of the original network for one of the smaller network.

        Removed weights have their original values: training would not have changed any that the
        output depends on. Running statistics of zero channels decay as in training.
        """
        if not self.training:
            raise CompactionError(
                "this network was compacted for evaluation, not for training: removed channels "
                "might have learned; use compact(..., training=True)"
            )
        state = scatter(self.original.state, ticket.state, self.places)
        for name, zeros in self.zero_channels.items():
            zeros.decay_(state, name, self.original.state)
        mask = scatter(self.original.mask, ticket.mask, self.places)
        return replace(ticket, mask=mask, state=state)


@during("compacting")
def compact(
    ticket: Ticket, model: nn.Module, *, training: bool = False, shape: Shape | None = None
) -> Compact:
    """Remove every channel that receives nothing or is never used; `model` is not changed.

    The smaller network has the same outputs in evaluation: constants of removed channels are folded
    into the next layer. With `training`, it also trains like the original; then only channels that
    are zero, and remain so, are removed. `shape` is the shape of an image, if the ticket has none.
    """
    shape = shape or ticket.info.shape
    if shape is None:
        raise CompactionError("the ticket does not record the shape of images; give shape=")
    model = check_model(model)
    masked = ticket.apply(own_copy(model)).cpu()
    analysis = analyze(copy.deepcopy(masked).double(), shape, ticket.mask if training else None)
    folded = {} if training else _folded(analysis, masked)
    source = _with_folded(ticket, folded)
    places = _places(analysis, source)
    settings = {_path(op): own for op in analysis.ops if (own := op.settings(analysis.kept))}
    small = replace(source, mask=gather(source.mask, places), state=gather(source.state, places))
    result = Compact(
        model=small.apply(resized_copy(model, small.state, settings)),
        ticket=small,
        original=ticket,
        places=places,
        settings=settings,
        training=training,
        zero_channels=_zero_channels(analysis) if training else {},
        carried=len(folded),
        untouched=opaque_steps(analysis),
    )
    eps = torch.finfo(next(model.parameters()).dtype).eps
    tolerance = max(_TOLERANCE, _ROUNDING_STEPS * eps) if folded else _TOLERANCE
    _check_same(*_decayed(masked, result, analysis, training), shape, tolerance)
    return result


def _path(op: Op) -> str:
    return str(op.node.target)


def _folded(analysis: Analysis, masked: nn.Module) -> Tensors:
    """Return the weights and biases that contain constants of removed channels."""
    folded: Tensors = {}
    for op in analysis.ops:
        if isinstance(op, ConvOrLinear):
            for name, tensor in op.folded(analysis.channels, analysis.kept).items():
                dtype = next(masked.get_submodule(_path(op)).parameters()).dtype
                folded[f"{_path(op)}.{name}"] = tensor.to(dtype)
    return folded


def _with_folded(ticket: Ticket, folded: Tensors) -> Ticket:
    """Return the ticket with these tensors; a weight with a folded constant is not pruned."""
    mask = {
        name: kept | (folded[name] != 0) if name in folded else kept
        for name, kept in ticket.mask.items()
    }
    state = {
        name: torch.where(mask[name], folded[name], tensor)
        if name in folded and name in mask
        else folded.get(name, tensor)
        for name, tensor in ticket.state.items()
    }
    added = {name: tensor for name, tensor in folded.items() if name not in state}
    return replace(ticket, mask=mask, state=state | added)


def _places(analysis: Analysis, ticket: Ticket) -> Tensors:
    """Return the flat indices of the kept entries of the ticket's tensors."""
    named = {
        f"{_path(op)}.{name}": places
        for op in analysis.ops
        for name, places in op.places(analysis.kept).items()
    }
    return {
        name: places
        for name, places in named.items()
        if name in ticket.state and places.shape != ticket.state[name].shape
    }


def _zero_channels(analysis: Analysis) -> dict[str, ZeroChannels]:
    """Find the removed channels of norms that are zero in every batch."""
    found = {}
    for op in analysis.ops:
        if isinstance(op, BatchNorm) and op.layer.running_mean is not None:
            constant = analysis.channels[op.inputs[0]].constant
            removed = constant & ~analysis.kept.masks[op.node]
            if removed.any():
                found[_path(op)] = ZeroChannels(removed, op.layer.momentum)
    return found


def _decayed(
    masked: nn.Module, result: Compact, analysis: Analysis, training: bool
) -> tuple[nn.Module, nn.Module]:
    """Return both networks; for training, with decayed running means of zero channels."""
    pair = masked, copy.deepcopy(result.model).cpu()
    for op in analysis.ops:
        if training and isinstance(op, BatchNorm) and op.layer.running_mean is not None:
            zero, kept = analysis.channels[op.inputs[0]].constant, analysis.kept.masks[op.node]
            for model, channels in zip(pair, (zero, zero[kept]), strict=True):
                model.get_buffer(f"{_path(op)}.running_mean")[channels] = 0
    return pair


def difference(one: nn.Module, other: nn.Module, inputs: Tensor, *, at_least: float = 0.0) -> float:
    """Return the largest difference of two networks' outputs in evaluation and float64.

    It is relative to the largest output of the first network, or to `at_least` if that is larger.
    """
    outputs = []
    for model in (one, other):
        double = copy.deepcopy(model).double().eval()
        with torch.no_grad():
            outputs.append(double(as_input(inputs, next(double.parameters()))))
    error = float((outputs[0] - outputs[1]).abs().max())
    return error / (max(at_least, float(outputs[0].abs().max())) or 1.0)


def _check_same(masked: nn.Module, small: nn.Module, shape: Shape, tolerance: float) -> None:
    """Refuse a smaller network whose outputs differ."""
    inputs = example_inputs(masked, shape, 2)
    error = difference(masked, small, inputs, at_least=1.0)
    if not error <= tolerance:
        raise CompactionError(
            f"the compact {type(masked).__name__} would have other outputs (by {error:.1g}), so "
            "its forward pass uses channels in a way that the trace does not show; use the ticket "
            "without compaction"
        )
