"""Making a network ready for pruning at initialization.

Networks that are meant to be trained as a whole often begin with residual branches switched off:
norms of scale 0, layer scales of 1e-5, weights of zeros. Training switches them on, because scales
are trained too. Pruning at initialization looks before that happens.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gemkit.core.errors import some
from gemkit.core.prunable import KINDS, kind_of, weights_of
from gemkit.core.tensors import generator
from gemkit.models.check import check_instance, own_copy

_TINY = 1e-3
"""Weights whose root mean square times √inputs is below this shrink a signal a thousandfold."""
_SMALL_SCALE = 0.01
_SCALES = re.compile(
    r"(gamma|scale|layer_?scale|lambda|ls|res_?scale|res_?weight|skipinit_gain)"
    r"(_?\d+|_xca|_attn|_mlp)?"
)
"""What the scale of a residual branch is called in timm, torchvision and elsewhere."""


class Change(NamedTuple):
    """One parameter that keeps signal from passing, and what to do about it."""

    name: str
    parameter: nn.Parameter
    kind: str


def changes(model: nn.Module, *, frozen: bool = False) -> Iterator[Change]:
    """Find norm scales of 0, layer scales next to 0, and prunable weights next to 0.

    Parameters with `requires_grad=False` are left out unless `frozen` is true.
    """
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for own, parameter in module._parameters.items():
            if parameter is None or not parameter.numel() or id(parameter) in seen:
                continue
            if not (frozen or parameter.requires_grad):
                continue
            seen.add(id(parameter))
            if (kind := _kind(module, own, parameter.detach())) is not None:
                yield Change(f"{prefix}.{own}" if prefix else own, parameter, kind)


def _kind(module: nn.Module, name: str, value: Tensor) -> str | None:
    """Name what is wrong with a parameter, if anything is."""
    if name in weights_of(module) and kind_of(module) in KINDS:
        inputs = value[0].numel() if value.ndim > 1 else 1
        rms = float(torch.linalg.vector_norm(value.float())) / value.numel() ** 0.5
        return "weight" if rms * inputs**0.5 < _TINY else None
    kind = type(module).__name__.lower()
    if "response" in kind or "grn" in kind:
        return None  # a response norm adds to its input, so its scale may be 0
    low, high = (float(edge) for edge in value.float().aminmax())
    if name == "weight" and "norm" in kind:
        return "norm scale" if low == high == 0 else None
    is_scale = _SCALES.fullmatch(name) is not None
    return "layer scale" if is_scale and max(abs(low), abs(high)) < _SMALL_SCALE else None


@torch.no_grad()
def prepare_(model: nn.Module, rng: torch.Generator | None = None) -> list[Change]:
    """Let signal pass from the start: set scales to 1, and draw weights that are next to 0.

    Weights are drawn as PyTorch draws those of convolutions and linear layers. Returns what was
    changed.
    """
    found = list(changes(model))
    for _, parameter, kind in found:
        if kind == "weight":
            drawn = torch.empty(parameter.shape, dtype=parameter.dtype)
            nn.init.kaiming_uniform_(drawn, a=5**0.5, generator=rng)
            parameter.copy_(drawn)
        else:
            parameter.fill_(1.0)
    return found


def prepare(model: nn.Module, *, seed: int = 0) -> nn.Module:
    """Return a copy of the model that is ready for pruning at initialization.

    Norm scales of 0 and layer scales next to 0 become 1; weights next to 0 are drawn from the
    seed. Everything else is as it was, frozen parameters too. Meant for freshly drawn networks:
    where weights were trained, a scale of 0 is something the network has learned.
    """
    own = own_copy(check_instance(model))
    prepare_(own, generator(seed, "prepare"))
    return own


def describe(found: list[Change]) -> str:
    """Say in one clause what keeps signal from passing."""
    kinds = {
        "norm scale": "norms with a scale of 0",
        "layer scale": "layer scales next to 0",
        "weight": "weights next to 0",
    }
    groups = {
        words: [change.name for change in found if change.kind == kind]
        for kind, words in kinds.items()
    }
    return ", ".join(f"{words} ({some(names, 2)})" for words, names in groups.items() if names)
