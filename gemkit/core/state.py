"""Save and load the state of objects, for checkpoints.

A state dict may share memory with its object, so it is valid only until the object changes.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from gemkit.core.errors import CheckpointError, some
from gemkit.core.tensors import Tensors

StateDict = dict[str, Any]
"""Names -> tensors, numbers, strings, None, lists of these, or nested state dicts."""


class Stateful(Protocol):
    """An object whose state can be saved, and loaded into another one made the same way.

    The second object then continues bit for bit where the first one was saved.
    """

    def state_dict(self) -> StateDict:
        """Return everything that changes during a run."""
        ...

    def load_state_dict(self, state: StateDict) -> None:
        """Load a state, or raise; it may come from a file, so check everything."""
        ...


def checked_tensors(saved: object, like: Tensors) -> Tensors:
    """Return saved tensors on the devices of `like`; names, shapes and types must match."""
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


def checked_rng_state(saved: object, like: Tensor) -> Tensor:
    """Return the saved state of a random generator, as a copy.

    torch reads beyond the end of a state that is a slice of a larger tensor.
    """
    return checked_tensors({"random": saved}, {"random": like})["random"].clone().contiguous()


def checked_count(state: StateDict, name: str) -> int:
    """Return a saved count, which must be a non-negative integer."""
    value = state[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise CheckpointError(f"'{name}' is saved as {value!r}, which is not a count")
    return value
