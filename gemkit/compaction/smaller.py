"""A ticket's network without the channels it has no use for: smaller, and the same function."""

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gemkit.compaction.layers import Norm, Product
from gemkit.compaction.liveness import Anatomy, anatomy, untouched
from gemkit.compaction.shrinking import put_back, shrunk, taken
from gemkit.compaction.steps import Step
from gemkit.compaction.tracing import Shape, example_images
from gemkit.errors import CompactionError
from gemkit.tensors import Tensors
from gemkit.ticket import Ticket

_TOLERANCE = 1e-9
"""By how much outputs in float64 may differ, in multiples of the largest, or of one."""
_ROUNDED = 1e3
"""The same, in multiples of the last digit, where numbers carried on were rounded to be stored."""


class Width(NamedTuple):
    """How many outputs of a layer stay, and how many there were."""

    name: str
    kept: int
    before: int


class Fading(NamedTuple):
    """Channels of a batch norm that are zero in every batch, and how fast it forgets others."""

    channels: Tensor
    momentum: float | None

    def go_on_(self, state: Tensors, norm: str, start: Tensors) -> None:
        """Let statistics go on from where they were, as batches of zeros would have made them."""
        counter = f"{norm}.num_batches_tracked"
        before, now = int(start[counter]), int(state[counter])
        if now == before:
            return
        faded = before / now if self.momentum is None else (1 - self.momentum) ** (now - before)
        for name in (f"{norm}.running_mean", f"{norm}.running_var"):
            state[name] = torch.where(self.channels, state[name] * faded, state[name])


@dataclass(frozen=True, eq=False)
class Compact:
    """A smaller network and its ticket, with the way back.

    `model` holds the ticket's weights and is an ordinary module of the class it always was, and
    `ticket` masks what is left, for most of that is pruned, too. `places` says for every tensor
    that has become smaller where its entries lie in the original, as positions in C order.
    """

    model: nn.Module
    ticket: Ticket
    original: Ticket
    places: Tensors
    settings: dict[str, dict[str, int]]
    """The sizes of the layers that have become smaller, by name."""
    training: bool
    fading: dict[str, Fading]
    """Batch norms that lost channels which are still in training, by name."""
    carried: int
    """How many layers carry numbers that removed channels have brought."""
    untouched: list[str]
    """The steps of the forward pass around which everything stays."""

    @cached_property
    def widths(self) -> list[Width]:
        """What is left of every prunable layer."""
        old = self.original.state
        return [
            Width(name, len(self.ticket.state[name]), len(old[name])) for name in self.ticket.mask
        ]

    def expand(self, ticket: Ticket) -> Ticket:
        """Put a ticket of the smaller network back into the original one, from where it came.

        What was removed is as it was; of it, training would have moved nothing that the network's
        output depends on. Only the statistics of channels that are still fade, as in training.
        """
        if not self.training:
            raise CompactionError(
                "this network was made to be used, not to be trained: removed channels might have "
                "learned; make it with compact(..., training=True)"
            )
        state = put_back(self.original.state, ticket.state, self.places)
        for name, fading in self.fading.items():
            fading.go_on_(state, name, self.original.state)
        mask = put_back(self.original.mask, ticket.mask, self.places)
        return replace(ticket, mask=mask, state=state)


def compact(
    ticket: Ticket, model: nn.Module, *, training: bool = False, shape: Shape | None = None
) -> Compact:
    """Remove every channel that nothing reaches, or that reaches nothing; `model` stays as it is.

    In evaluation the smaller network gives the same outputs: what removed channels bring, which is
    one number each, is carried on by the next layer. With `training`, it is one that learns just as
    the original does: then only those go that are zero, and stay so. `shape` is that of an image,
    where the ticket does not say it.
    """
    shape = shape or ticket.info.shape
    if shape is None:
        raise CompactionError("the ticket does not say how large images are; give shape=")
    whole = ticket.apply(copy.deepcopy(model)).cpu()
    parts = anatomy(copy.deepcopy(whole).double(), shape, ticket.mask if training else None)
    folded = {} if training else _folded(parts, whole)
    source = _with_folded(ticket, folded)
    places = _places(parts, source)
    settings = {_path(step): own for step in parts.steps if (own := step.settings(parts.kept))}
    small = replace(source, mask=taken(source.mask, places), state=taken(source.state, places))
    made = Compact(
        model=small.apply(shrunk(model, small.state, settings)),
        ticket=small,
        original=ticket,
        places=places,
        settings=settings,
        training=training,
        fading=_fading(parts) if training else {},
        carried=len(folded),
        untouched=untouched(parts),
    )
    digits = torch.finfo(next(model.parameters()).dtype).eps
    tolerance = max(_TOLERANCE, _ROUNDED * digits) if folded else _TOLERANCE
    _check_same(*_settled(whole, made, parts, training), shape, tolerance)
    return made


def _path(step: Step) -> str:
    return str(step.node.target)


def _folded(parts: Anatomy, whole: nn.Module) -> Tensors:
    """Return the weights and biases that carry on what removed channels brought."""
    folded: Tensors = {}
    for step in parts.steps:
        if isinstance(step, Product):
            for own, tensor in step.folded(parts.signals, parts.kept).items():
                dtype = next(whole.get_submodule(_path(step)).parameters()).dtype
                folded[f"{_path(step)}.{own}"] = tensor.to(dtype)
    return folded


def _with_folded(ticket: Ticket, folded: Tensors) -> Ticket:
    """Return the ticket with these tensors; a weight that carries something is not pruned."""
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


def _places(parts: Anatomy, ticket: Ticket) -> Tensors:
    """Say where in the ticket's tensors lies what stays of them."""
    named = {
        f"{_path(step)}.{own}": places
        for step in parts.steps
        for own, places in step.places(parts.kept).items()
    }
    return {
        name: places
        for name, places in named.items()
        if name in ticket.state and places.shape != ticket.state[name].shape
    }


def _fading(parts: Anatomy) -> dict[str, Fading]:
    """Find the norms whose removed channels are zero in every batch."""
    found = {}
    for step in parts.steps:
        if isinstance(step, Norm) and step.layer.running_mean is not None:
            lost = parts.signals[step.reads[0]].still & ~parts.kept.masks[step.node]
            if lost.any():
                found[_path(step)] = Fading(lost, step.layer.momentum)
    return found


def _settled(
    whole: nn.Module, made: Compact, parts: Anatomy, training: bool
) -> tuple[nn.Module, nn.Module]:
    """Return both networks as they are when the statistics of still channels have faded."""
    pair = whole, copy.deepcopy(made.model).cpu()
    for step in parts.steps:
        if training and isinstance(step, Norm) and step.layer.running_mean is not None:
            still, kept = parts.signals[step.reads[0]].still, parts.kept.masks[step.node]
            for model, own in zip(pair, (still, still[kept]), strict=True):
                model.get_buffer(f"{_path(step)}.running_mean")[own] = 0
    return pair


def difference(one: nn.Module, other: nn.Module, images: Tensor, *, at_least: float = 0.0) -> float:
    """Return by how much the outputs of two networks differ in evaluation, computed in float64.

    It is told in multiples of the largest output, or of `at_least` where outputs are smaller.
    """
    outputs = []
    for model in (one, other):
        own = copy.deepcopy(model).double().eval()
        with torch.no_grad():
            outputs.append(own(images.double()))
    apart = float((outputs[0] - outputs[1]).abs().max())
    return apart / (max(at_least, float(outputs[0].abs().max())) or 1.0)


def _check_same(one: nn.Module, other: nn.Module, shape: Shape, tolerance: float) -> None:
    """Refuse a smaller network that is another function, whatever the reason."""
    images = example_images(shape, 2, torch.float64)
    error = difference(one, other, images, at_least=1.0)
    if not error <= tolerance:
        raise CompactionError(
            f"the smaller {type(one).__name__} would give other outputs (by {error:.1g}), so its "
            "forward pass does something with channels that is not seen when it is followed; use "
            "the ticket as it is"
        )
