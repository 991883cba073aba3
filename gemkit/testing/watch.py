"""Detect what a call changes: tensors, a model, or the global random generators."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from gemkit.core.tensors import Tensors
from gemkit.testing.clause import require

State = dict[str, object]
Result = TypeVar("Result")


def same(one: object, other: object) -> bool:
    """Return whether two values are bit-equal; nan equals nan."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return (
            one.shape == other.shape
            and one.dtype == other.dtype
            and one.device == other.device
            and torch.equal(_bits(one), _bits(other))
        )
    return bool(one == other)


def _bits(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


def same_everywhere(one: Tensors, other: Tensors) -> bool:
    """Return whether two dictionaries of tensors are equal: bit-equal on a CPU, else close."""
    if list(one) != list(other):
        return False
    if all(tensor.device.type == "cpu" for tensor in one.values()):
        return all(same(one[name], other[name]) for name in one)
    return all(torch.allclose(one[name], other[name]) for name in one)


def state_of(model: nn.Module) -> State:
    """Record everything of a model that measuring must not change."""
    state: State = {}
    for name, parameter in model.named_parameters():
        state[f"the values of {name}"] = parameter.detach().clone()
        state[f"the gradient of {name}"] = (
            None if parameter.grad is None else parameter.grad.clone()
        )
        state[f"requires_grad of {name}"] = parameter.requires_grad
    for name, buffer in model.named_buffers():
        state[f"the buffer {name}"] = buffer.clone()
    for name, module in model.named_modules():
        state[f"the mode of '{name}'"] = module.training
        state[f"the hooks of '{name}'"] = len(module._forward_hooks) + len(
            module._forward_pre_hooks
        )
    return state


@contextmanager
def unchanged(what: str, record: Callable[[], State]) -> Iterator[None]:
    """Fail if `record` returns something else after the block."""
    before = record()
    yield
    after = record()
    changed = [
        name
        for name in [*before, *(name for name in after if name not in before)]
        if name not in after or name not in before or not same(before[name], after[name])
    ]
    require(not changed, f"{what} changed: {', '.join(changed[:3])}")


def copied(tensors: Iterable[tuple[str, Tensor]]) -> State:
    """Record tensors by name."""
    return {name: tensor.detach().clone() for name, tensor in tensors}


def random_state() -> State:
    """Record the global random generators of torch, NumPy and Python."""
    state: State = {
        "torch's": torch.get_rng_state(),
        "NumPy's": pickle.dumps(np.random.get_state()),
        "Python's": random.getstate(),
    }
    if torch.cuda.is_available():
        state["CUDA's"] = torch.cuda.get_rng_state()
    return state


@contextmanager
def no_global_randomness() -> Iterator[None]:
    """Fail if the block draws from a global random generator; restore torch's."""
    cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=cuda), unchanged("global random numbers", random_state):
        yield


def at_global_seed(seed: int, call: Callable[[], Result]) -> Result:
    """Call a function with torch's global generator seeded, and restore it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return call()
