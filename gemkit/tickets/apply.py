"""Check whether a ticket fits a model, and compute the state to load into it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from gemkit.core.errors import some
from gemkit.core.tensors import Tensors
from gemkit.models.check import is_expanded

State = Mapping[str, Tensor]
Ties = Sequence[Sequence[str]]
"""Groups of names that share one parameter."""


def effective(mask: Tensors, state: Tensors, own: State) -> Tensors:
    """Return the state with its masks applied, for a model whose state is `own`.

    A tied weight is masked under one of its names, and that value is used for all of them:
    otherwise the last name loaded would bring the pruned weights back.
    """
    values = dict(state)
    for name, kept in mask.items():
        values[name] = values[name].masked_fill(~kept, 0)  # w · mask gives -0, and NaN for inf
    for names in _tied(own):
        masked = next((name for name in names if name in mask), names[0])
        values.update(dict.fromkeys(names, values[masked]))
    return values


def misfits(mask: Tensors, state: Tensors, own: State, ties: Ties | None = None) -> list[str]:
    """List why a model whose state is `own` cannot take this ticket.

    `ties` are those of the ticket's network, or None if they are unknown.
    """
    return _differences(state, own) or _other_ties(ties, own) or _untied(mask, state, own)


def ties_of(own: State) -> list[list[str]]:
    """Group the names that share one parameter, in a state_dict with `keep_vars=True`.

    Buffers are ignored: moving or converting a model may separate them.
    """
    groups: dict[int, list[str]] = {}
    for name, tensor in own.items():
        if isinstance(tensor, nn.Parameter):
            groups.setdefault(id(tensor), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _differences(state: Tensors, own: State) -> list[str]:
    """Compare names, shapes and types."""
    shared = [name for name in state if isinstance(own.get(name), Tensor)]
    uncastable = [name for name in shared if not torch.can_cast(state[name].dtype, own[name].dtype)]
    shapes = [
        f"{name} {tuple(own[name].shape)}, in the ticket {tuple(state[name].shape)}"
        for name in shared
        if state[name].shape != own[name].shape
    ]
    found = [
        ("missing from the ticket", [name for name in own if name not in state]),
        ("unexpected in the ticket", [name for name in state if name not in own]),
        ("of another shape", shapes),
        ("of a type that cannot take the ticket's values", uncastable),
        (
            "made in inference mode, where nothing can be written later",
            [name for name in shared if own[name].is_inference()],
        ),
        ("without memory (meta device)", [name for name in shared if own[name].is_meta]),
        (
            "expanded parameters, whose entries share memory",
            [n for n in shared if isinstance(own[n], nn.Parameter) and is_expanded(own[n])],
        ),
    ]
    return [f"{what}: {some(names)}" for what, names in found if names]


def _untied(mask: Tensors, state: Tensors, own: State) -> list[str]:
    """List tensors that are tied in the model but differ in the ticket."""
    return [
        f"tied in the model but different in the ticket: {some(names)}"
        for names in _tied(own)
        if not _all_equal([state[name] for name in names])
        or not _all_equal([mask[name] for name in names if name in mask])
    ]


def _other_ties(ties: Ties | None, own: State) -> list[str]:
    """Compare which parameters are tied: a mask is stored under only one of their names."""
    if ties is None:
        return []
    theirs = ties_of(own)
    found = [
        ("one weight in the ticket's network but several in the model", _split(ties, theirs)),
        ("one weight in the model but several in the ticket's network", _split(theirs, ties)),
    ]
    return [f"{what}: {some(names)}" for what, groups in found for names in groups[:5]]


def _split(ties: Ties, others: Ties) -> list[Sequence[str]]:
    """Return the groups whose names are not all in one group of `others`."""
    home = {name: number for number, names in enumerate(others) for name in names}
    return [names for names in ties if len({home.get(name, name) for name in names}) > 1]


def _tied(own: State) -> list[list[str]]:
    """Group the names that share the memory of one tensor."""
    groups: dict[object, list[str]] = {}
    for name, tensor in own.items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        groups.setdefault(place, []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _all_equal(tensors: Sequence[Tensor]) -> bool:
    """Compare bytes, so that NaN equals itself."""
    raw = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
    return all(torch.equal(raw[0], other) for other in raw[1:])
