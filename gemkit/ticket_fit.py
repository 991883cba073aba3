"""Whether a ticket fits a model, and what exactly is then written into it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from gemkit.errors import some
from gemkit.tensors import Tensors

State = Mapping[str, Tensor]
Ties = Sequence[Sequence[str]]
"""The names of every parameter that has several."""


def effective(mask: Tensors, state: Tensors, own: State) -> Tensors:
    """Return the state with its masks applied, for a model whose state is `own`.

    A weight with several names is masked under one of them, and that one speaks for all: otherwise
    the last name loaded would bring the pruned weights back.
    """
    values = dict(state)
    for name, kept in mask.items():
        values[name] = values[name].masked_fill(~kept, 0)  # w·mask would make -0, and NaN of inf
    for names in _tied(own):
        speaker = next((name for name in names if name in mask), names[0])
        values.update(dict.fromkeys(names, values[speaker]))
    return values


def misfits(mask: Tensors, state: Tensors, own: State, ties: Ties | None = None) -> list[str]:
    """Say everything that keeps a model whose state is `own` from taking this ticket.

    `ties` are those of the ticket's network, and None where they are not known.
    """
    return _differences(state, own) or _other_ties(ties, own) or _torn(mask, state, own)


def ties_of(own: State) -> list[list[str]]:
    """Group the names that stand for one parameter, in a state_dict with `keep_vars=True`.

    Buffers do not count: nothing keeps them one when a model is moved or converted.
    """
    groups: dict[int, list[str]] = {}
    for name, tensor in own.items():
        if isinstance(tensor, nn.Parameter):
            groups.setdefault(id(tensor), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _differences(state: Tensors, own: State) -> list[str]:
    """Compare names, shapes and types."""
    shared = [name for name in state if isinstance(own.get(name), Tensor)]
    stiff = [name for name in shared if not torch.can_cast(state[name].dtype, own[name].dtype)]
    shapes = [
        f"{name} {tuple(own[name].shape)}, in the ticket {tuple(state[name].shape)}"
        for name in shared
        if state[name].shape != own[name].shape
    ]
    found = [
        ("missing from the ticket", [name for name in own if name not in state]),
        ("unexpected in the ticket", [name for name in state if name not in own]),
        ("of another shape", shapes),
        ("of a type that cannot take the ticket's values", stiff),
        ("without memory (meta device)", [name for name in shared if own[name].is_meta]),
    ]
    return [f"{what}: {some(names)}" for what, names in found if names]


def _torn(mask: Tensors, state: Tensors, own: State) -> list[str]:
    """Find what is one tensor in the model but several, and different, in the ticket."""
    return [
        f"tied in the model but different in the ticket: {some(names)}"
        for names in _tied(own)
        if not _all_equal([state[name] for name in names])
        or not _all_equal([mask[name] for name in names if name in mask])
    ]


def _other_ties(ties: Ties | None, own: State) -> list[str]:
    """Compare which parameters are shared: a mask stands under one of their names alone."""
    if ties is None:
        return []
    theirs = ties_of(own)
    found = [
        ("one weight in the ticket's network but several in the model", _beyond(ties, theirs)),
        ("one weight in the model but several in the ticket's network", _beyond(theirs, ties)),
    ]
    return [f"{what}: {some(names)}" for what, groups in found for names in groups[:5]]


def _beyond(ties: Ties, others: Ties) -> list[Sequence[str]]:
    """Return the groups whose names are not all in one of the others."""
    home = {name: number for number, names in enumerate(others) for name in names}
    return [names for names in ties if len({home.get(name, name) for name in names}) > 1]


def _tied(own: State) -> list[list[str]]:
    """Group the names that stand for one and the same tensor of a model."""
    groups: dict[object, list[str]] = {}
    for name, tensor in own.items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        groups.setdefault(place, []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _all_equal(tensors: Sequence[Tensor]) -> bool:
    """Compare bytes, so that a NaN equals itself."""
    return all(torch.equal(_raw(tensors[0]), _raw(tensor)) for tensor in tensors[1:])


def _raw(tensor: Tensor) -> Tensor:
    """View a tensor as its bytes."""
    return tensor.reshape(-1).view(torch.uint8)
