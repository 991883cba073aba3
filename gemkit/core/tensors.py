"""Dictionaries of tensors by parameter name, and counts on them.

Weights, scores, masks and importance all have the same keys, in module order.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.weak import WeakTensorKeyDictionary

Tensors = dict[str, Tensor]
"""Tensors by the names of parameters, in module order."""


def parameters_of(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """Return the named parameters, in the given order."""
    return {name: model.get_parameter(name) for name in names}


def call_with(model: nn.Module, tensors: Tensors, *inputs: Tensor) -> Any:  # noqa: ANN401
    """Run a model with other tensors in place of its parameters and buffers.

    A shared tensor is replaced everywhere. Plain `functional_call` leaves a layer that the model
    holds under two names with the wrong tensors afterwards (pytorch/pytorch#164759).
    """
    places: dict[int, list[str]] = {}
    for prefix, layer in model.named_modules():
        for own, tensor in chain(layer._parameters.items(), layer._buffers.items()):
            places.setdefault(id(tensor), []).append(f"{prefix}.{own}" if prefix else own)
    everything = chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    everywhere = {name: places[id(tensor)] for name, tensor in everything}
    given = {place: new for name, new in tensors.items() for place in everywhere.get(name, [name])}
    return functional_call(model, given, inputs, tie_weights=False)


def as_input(inputs: Tensor, like: Tensor) -> Tensor:
    """Return inputs on the device and in the dtype of a network's tensor.

    Integers are not converted: they are indices, such as tokens.
    """
    return inputs.to(like.device) if is_index(inputs) else inputs.to(like)


def is_index(inputs: Tensor) -> bool:
    """Whether inputs are indices, such as tokens, rather than values."""
    return inputs.dtype in (torch.int32, torch.int64)


def aligned(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor with the strides of `like`; copy only if needed.

    `_foreach_` kernels are slow on tensors with different strides, and fused CPU kernels would pair
    up the wrong entries.
    """
    if tensor.stride() == like.stride():
        return tensor
    strides = zip(tensor.shape, tensor.stride(), like.stride(), strict=True)
    if all(size == 1 or own == other for size, own, other in strides):
        return tensor.as_strided(like.shape, like.stride())
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def all_aligned(tensors: Iterable[Tensor], likes: Iterable[Tensor]) -> list[Tensor]:
    """Align every tensor with its counterpart."""
    return [aligned(tensor, like) for tensor, like in zip(tensors, likes, strict=True)]


def total(tensors: Tensors) -> int:
    """Return the number of entries of all tensors."""
    return sum(tensor.numel() for tensor in tensors.values())


def counts(masks: Tensors) -> dict[str, int]:
    """Count the ones of each mask, in one transfer from a device.

    Counts of masks on a device are cached until the mask changes: several steps of a freeze need
    them.
    """
    if all(mask.is_cpu for mask in masks.values()):
        return {name: int(np.count_nonzero(as_array(mask))) for name, mask in masks.items()}
    versions = [_version(mask) for mask in masks.values()]
    known = [_COUNTED.get(mask, (None, 0)) for mask in masks.values()]
    if any(now is None or now != then for now, (then, _) in zip(versions, known, strict=True)):
        found = torch.stack([mask.count_nonzero() for mask in masks.values()]).tolist()
        known = list(zip(versions, found, strict=True))
        _COUNTED.update(zip(masks.values(), known, strict=True))
    return {name: count for name, (_, count) in zip(masks, known, strict=True)}


_COUNTED: Any = WeakTensorKeyDictionary()
"""For every mask, the version that was counted, and the count."""


def _version(mask: Tensor) -> int | None:
    """Return a number that changes with the mask, or None if there is none."""
    return None if mask.is_inference() else mask._version


def as_array(tensor: Tensor) -> NDArray[Any]:
    """Return a NumPy view of a tensor, or a copy if NumPy does not know its dtype."""
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()  # exact; NumPy lacks bfloat16 and is slow with float16
    return tensor.detach().numpy()


def names_where(*facts: Tensors) -> list[list[str]]:
    """List the layers for which each of these facts is true, in one transfer from the device."""
    truths = [truth for fact in facts for truth in fact.values()]
    found = iter(torch.stack(truths).tolist() if truths else [])
    return [[name for name in fact if next(found)] for fact in facts]


def kept(masks: Tensors) -> int:
    """Count the ones of all masks together."""
    return sum(counts(masks).values())


def density_of(masks: Tensors) -> float:
    """Return the fraction of entries that are one."""
    return kept(masks) / total(masks)


def budget(entries: int, density: float) -> int:
    """Return round-half-up(density · entries), exactly.

    The density is taken as the decimal that is written (0.9 is 9/10, not the nearest double), so
    that binary rounding cannot change a count.
    """
    return int(Fraction(repr(float(density))) * entries + Fraction(1, 2))


def generator(seed: int, purpose: str) -> torch.Generator:
    """Return an independent random generator for one purpose.

    It is on the CPU, so that a seed gives the same numbers on every device.
    """
    mixed = zlib.crc32(purpose.encode()) ^ (seed * 0x9E3779B97F4A7C15)
    return torch.Generator().manual_seed(mixed % 2**63)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global random generators, which dropout uses, and restore them afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
