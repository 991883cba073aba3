"""Tensors by parameter name: the one shape in which weights, scores, masks and importance travel.

All of them share the same keys, in module order, so no layer lists, wrapper layers or
`id(param)` tables are needed anywhere.
"""

import fnmatch
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gemkit.errors import GemkitError, some
from gemkit.kernels import recomputes, weights_of

Tensors = dict[str, Tensor]


def prunable_names(
    model: nn.Module,
    *,
    include: Sequence[str] = ("*",),
    skip: Sequence[str] = (),
    frozen: bool = False,
) -> list[str]:
    """Name the weights that may be pruned, in module order.

    They are found by type: the weights of convolutions and linear layers (grouped, depthwise and
    transposed ones too) and the projections of `nn.MultiheadAttention`. Biases, norms, embeddings
    and position tables are not pruned. A weight shared by several modules counts once. A layer
    that would turn the zeros of a mask into other numbers is an error (see `gemkit.kernels`).
    Frozen weights (`requires_grad=False`) are left out unless `frozen` is true.

    `include` and `skip` are shell patterns on the parameter name, such as `"layer4.*"`.
    """
    found: dict[int, str] = {}
    derived: list[str] = []
    for name, layer, own in _weights(model):
        if not frozen and _is_frozen(layer, own):
            continue
        if recomputes(layer, own):
            derived.append(name)
        else:
            found.setdefault(id(layer._parameters[own]), name)
    names = _matching(found.values(), include, skip)
    if recomputed := _matching(derived, include, skip):
        raise GemkitError(
            f"{type(model).__name__} computes {some(recomputed)} anew in every forward pass, so a "
            "weight that a mask sets to zero would not be zero in the network; choose a network "
            "without weight standardization, or take parametrizations off first, with "
            "torch.nn.utils.parametrize.remove_parametrizations"
        )
    if not names and (left := _matching(frozen_names(model), include, skip)):
        raise GemkitError(
            f"every prunable weight of {type(model).__name__} is frozen (requires_grad=False): "
            f"{some(left)}; unfreeze what may be pruned, with requires_grad_(True), or ask for "
            "frozen weights with prune_frozen=True (in prunable_names, frozen=True)"
        )
    if not names:
        raise GemkitError(
            f"{type(model).__name__} has no prunable weights: gemkit prunes the weights of "
            f"convolution, linear and attention layers, here matching {list(include)} "
            f"and not {list(skip)}"
        )
    return names


def frozen_names(model: nn.Module) -> list[str]:
    """Name the weights that `prunable_names` leaves out because they are frozen."""
    found: dict[int, str] = {}
    for name, layer, own in _weights(model):
        if _is_frozen(layer, own):
            found.setdefault(id(layer._parameters.get(own, layer)), name)
    return list(found.values())


def _weights(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the weights of layers of the prunable kinds: name, layer, and name in the layer."""
    for prefix, layer in model.named_modules():
        for own in weights_of(layer):
            if layer._parameters.get(own, layer) is not None:
                yield f"{prefix}.{own}" if prefix else own, layer, own


def _is_frozen(layer: nn.Module, own: str) -> bool:
    """Whether a weight is frozen; a derived one is if no parameter of its layer is trained."""
    weight = layer._parameters.get(own)
    parameters = list(layer.parameters()) if weight is None else [weight]
    return not any(parameter.requires_grad for parameter in parameters)


def _matching(names: Iterable[str], include: Sequence[str], skip: Sequence[str]) -> list[str]:
    return [
        name
        for name in names
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in include)
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in skip)
    ]


def parameters_of(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """Look the named parameters up, keeping the given order."""
    return {name: model.get_parameter(name) for name in names}


def call_with(model: nn.Module, tensors: Tensors, *inputs: Tensor) -> Any:  # noqa: ANN401
    """Run a model with other tensors in the places of its own parameters and buffers.

    A shared one is replaced wherever it is used. `functional_call` by itself leaves a layer that
    the model holds under two names with the wrong tensors afterwards (pytorch/pytorch#164759).
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


def aligned(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor with the strides of another one of its shape; a copy only where needed.

    torch's `_foreach_` and fused kernels walk through memory. They are slow on tensors that lie
    there in different orders, and the fused ones on a CPU would even mix up entries.
    """
    if tensor.stride() == like.stride():
        return tensor
    strides = zip(tensor.shape, tensor.stride(), like.stride(), strict=True)
    if all(size == 1 or own == other for size, own, other in strides):
        return tensor.as_strided(like.shape, like.stride())
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def all_aligned(tensors: Iterable[Tensor], likes: Iterable[Tensor]) -> list[Tensor]:
    """Align every tensor with another one."""
    return [
        tensor if tensor.stride() == like.stride() else aligned(tensor, like)
        for tensor, like in zip(tensors, likes, strict=True)
    ]


def total(tensors: Tensors) -> int:
    """Count the entries of all tensors together."""
    return sum(tensor.numel() for tensor in tensors.values())


def kept(masks: Tensors) -> int:
    """Count the ones of all masks together, in one transfer from the device."""
    return int(torch.stack([mask.count_nonzero() for mask in masks.values()]).sum())


def density_of(masks: Tensors) -> float:
    """Return the fraction of entries that are one."""
    return kept(masks) / total(masks)


def budget(entries: int, density: float) -> int:
    """Return round-half-up(density · entries), exactly.

    The density is taken at its decimal face value (0.9 is 9/10, not the nearest double), so that
    no count is off by one through binary rounding.
    """
    return int(Fraction(repr(float(density))) * entries + Fraction(1, 2))


def generator(seed: int, purpose: str) -> torch.Generator:
    """Return an independent stream of random numbers for one purpose.

    It lives on the CPU, so that a seed draws the same numbers whatever the device.
    """
    mixed = zlib.crc32(purpose.encode()) ^ (seed * 0x9E3779B97F4A7C15)
    return torch.Generator().manual_seed(mixed % 2**63)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global random numbers (dropout draws from them) and restore them afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
