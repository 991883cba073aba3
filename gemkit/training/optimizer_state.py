"""Save the state of optimizers, and load it from untrusted files."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from gemkit.core.errors import CheckpointError
from gemkit.core.state import StateDict, checked_count, checked_tensors

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes the same kind of optimizer for other parameters."""


def parameters_in(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """List what the optimizer trains, group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def state_of(optimizer: torch.optim.Optimizer) -> StateDict:
    """Return the state of every parameter that has one, by the number of the parameter."""
    return {
        str(number): dict(optimizer.state[parameter])
        for number, parameter in enumerate(parameters_in(optimizer))
        if optimizer.state.get(parameter)
    }


def load_state_(optimizer: torch.optim.Optimizer, saved: StateDict, make: MakeOptimizer) -> None:
    """Load a saved state; it must look like that of an optimizer after a step."""
    parameters = {str(number): one for number, one in enumerate(parameters_in(optimizer))}
    likes: dict[tuple[torch.dtype, torch.device], StateDict] = {}
    for number, remembered in saved.items():
        if number not in parameters:
            raise CheckpointError(f"there is no trained parameter of number {number!r}")
        parameter = parameters[number]
        kind = parameter.dtype, parameter.device
        if kind not in likes:
            likes[kind] = _after_a_step(parameter, make)
        optimizer.state[parameter] = _matching(remembered, likes[kind], parameter)


_SHAPE = (2, 3)
"""The shape of a parameter that is trained to see the state of an optimizer."""


def _after_a_step(like: nn.Parameter, make: MakeOptimizer) -> StateDict:
    """Return the state of a parameter of this type after the first step."""
    parameter = nn.Parameter(like.new_zeros(_SHAPE))
    parameter.grad = torch.zeros_like(parameter)
    optimizer = make([parameter])
    optimizer.step()
    return dict(optimizer.state[parameter])


def _matching(saved: object, like: StateDict, parameter: nn.Parameter) -> StateDict:
    """Return a saved state with the names, shapes and types of `like`; refuse any other."""
    tensors = {
        # Expanded, because only shape, type and device count.
        name: value.new_zeros(()).expand(parameter.shape) if value.shape == _SHAPE else value
        for name, value in like.items()
        if isinstance(value, Tensor)
    }
    plain = {name: value for name, value in like.items() if name not in tensors}
    if not isinstance(saved, Mapping):
        raise CheckpointError("the state of a parameter is not saved as a table")
    for name, value in plain.items():
        if type(saved.get(name)) is not type(value):
            raise CheckpointError(f"'{name}' is saved with another type than it has")
        if type(value) is int:
            checked_count(dict(saved), name)
    rest = {name: value for name, value in saved.items() if name not in plain}
    return {**checked_tensors(rest, tensors), **{name: saved[name] for name in plain}}
