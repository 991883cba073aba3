"""Read with random numbers of one's own, so that reading and training do not disturb each other."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

State = tuple[torch.Tensor, dict[str, Any], tuple[Any, ...]]


class OwnRandom:
    """A state of the global random generators of torch, NumPy and Python, kept aside.

    Samplers, random transforms and worker processes of a loader draw from them, and so does
    dropout. Devices have generators of their own, and are left alone.
    """

    def __init__(self, seed: int) -> None:
        outer = _state()
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        self._own = _state()
        _set(outer)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Draw from here until the end of the block; the generators are as before afterwards."""
        outer = _state()
        _set(self._own)
        try:
            yield
        finally:
            self._own = _state()
            _set(outer)


def _state() -> State:
    numpy = np.random.get_state(legacy=False)
    return torch.get_rng_state(), numpy, random.getstate()


def _set(state: State) -> None:
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    random.setstate(state[2])
