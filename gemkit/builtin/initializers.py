"""Initializers: the weights in which a ticket is searched.

Fans follow the tensor's shape: fan_in = inputs per group × kernel size, fan_out = outputs × kernel
size, for convolutions and linear layers alike.
"""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from gemkit.core.tensors import Tensors
from gemkit.parts.initializer import Initializer
from gemkit.plugins.markers import hookimpl

_RELU_GAIN = math.sqrt(2)


def fan_in(weight: Tensor) -> int:
    """Return how many inputs each output sums over, 1 where a layer has none at all."""
    return max(1, math.prod(weight.shape[1:]))


def _fan(weight: Tensor, mode: Literal["fan_in", "fan_out"]) -> int:
    if mode == "fan_in":
        return fan_in(weight)
    return max(1, weight.shape[0] * math.prod(weight.shape[2:]))


class SignedConstant(Initializer):
    """Every weight of a layer is ±√(2/fan_in), the sign drawn fairly (Ramanujan et al. 2020)."""

    name = "signed_constant"

    def draw(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Draw the signs."""
        return {
            name: (torch.randint(0, 2, weight.shape, generator=rng) * 2 - 1).to(weight.dtype)
            * (_RELU_GAIN / math.sqrt(fan_in(weight)))
            for name, weight in weights.items()
        }


class KaimingNormal(Initializer):
    """Normal with standard deviation √(2/fan) (He et al. 2015)."""

    name = "kaiming_normal"

    mode: Literal["fan_in", "fan_out"] = Field(
        default="fan_in", description="preserve variance forward (fan_in) or backward (fan_out)"
    )

    def draw(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Draw from the normal distribution."""
        return {
            name: torch.randn(weight.shape, generator=rng, dtype=weight.dtype)
            * (_RELU_GAIN / math.sqrt(_fan(weight, self.mode)))
            for name, weight in weights.items()
        }


class KaimingUniform(Initializer):
    """Uniform on ±√(6/fan) (He et al. 2015)."""

    name = "kaiming_uniform"

    mode: Literal["fan_in", "fan_out"] = Field(
        default="fan_in", description="preserve variance forward (fan_in) or backward (fan_out)"
    )

    def draw(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Draw from the uniform distribution."""
        return {
            name: (torch.rand(weight.shape, generator=rng, dtype=weight.dtype) * 2 - 1)
            * (math.sqrt(3) * _RELU_GAIN / math.sqrt(_fan(weight, self.mode)))
            for name, weight in weights.items()
        }


class AsBuilt(Initializer):
    """The weights the model came with, pretrained ones included."""

    name = "as_built"

    def draw(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Return the model's own weights."""
        return {name: weight.detach().cpu().clone() for name, weight in weights.items()}


@hookimpl
def gemkit_initializers() -> list[type[Initializer]]:
    """Register the initializers."""
    return [SignedConstant, KaimingNormal, KaimingUniform, AsBuilt]
