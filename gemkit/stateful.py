"""What can be saved and brought back: every object that a run changes speaks of itself like this.

A state is plain data and tensors under names, nested as needed. It may share memory with the
object, so it is good until the object changes.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from gemkit.errors import CheckpointError, some
from gemkit.tensors import Tensors

State = dict[str, Any]
"""Names -> tensors, numbers, texts, None, lists of these, or states."""


class Stateful(Protocol):
    """Something whose state can be taken, and brought back into another object made the same way.

    After `restore_(state)` the object goes on, to the bit, as the one did that `state()` was taken
    from.
    """

    def state(self) -> State:
        """Return everything that changes in the course of a run."""
        ...

    def restore_(self, state: State) -> None:
        """Become what the state says, or raise: a state may come from a file, so trust nothing."""
        ...


def matching(saved: object, like: Tensors) -> Tensors:
    """Return saved tensors, where `like` are, if names, shapes and types are those of `like`."""
    if not isinstance(saved, Mapping) or set(saved) != set(like):
        found = list(saved) if isinstance(saved, Mapping) else []
        raise CheckpointError(
            f"tensors are saved for {some(found)}, and needed for {some([*like])}"
        )
    for name, tensor in like.items():
        value = saved[name]
        if not isinstance(value, Tensor) or (value.shape, value.dtype) != (
            tensor.shape,
            tensor.dtype,
        ):
            raise CheckpointError(f"'{name}' is saved with another shape or type than it has")
    return {name: saved[name].to(tensor.device) for name, tensor in like.items()}


def random_state(saved: object, like: Tensor) -> Tensor:
    """Return the saved state of a generator, if it is like one.

    It is a copy: torch reads beyond the end of a state that is part of a larger tensor.
    """
    return matching({"random": saved}, {"random": like})["random"].clone().contiguous()


def count_in(state: State, name: str) -> int:
    """Return a number of things that a state tells, which is a whole one and not negative."""
    value = state[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise CheckpointError(f"'{name}' is saved as {value!r}, which counts nothing")
    return value
