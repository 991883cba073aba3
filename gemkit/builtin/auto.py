"""Penalties that follow the target density: their strength is a price that feedback sets.

A score at the threshold stays above it where its weight lowers the loss by more than the penalty
pulls. So λ is the price of a weight, and every density has its price. This law finds it:

    c = d₀ (ρ/d₀)^(t/t₁), then ρ √2^((t−t₁)/(1−t₁))      the density to have at t, from 0 to 1
    e = ln(density / c)              how far the mask is from it, at most 1 to either side
    i ← i + K_i e / steps            what persists of that
    λ = κ σ sinh(1 + K_p e + i)      σ: root mean square of the task's gradient of alive scores

d₀ is the density of the first mask, ρ the target, t₁ is `end`. σ makes the price a number without
a unit, so that one setting serves networks, batch sizes, learning rates and optimizers. sinh lets
it grow and fall by factors, and change its sign: where the mask is too sparse, scores are pulled
up. From t₁ on the density rises a little. The price falls, scores that are needed leave the
threshold, and the last freeze takes those that have not.
"""

import math
from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gemkit.core.tensors import Tensors, total
from gemkit.parts.now import Now
from gemkit.parts.regularizer import Regularizer
from gemkit.plugins.markers import hookimpl

_SHORT = 240.0
"""In a search of fewer steps both gains are less: scores answer some steps later, by momentum."""
_FARTHEST = 1.0
"""The largest error that counts; a larger one is an accident, which must not wind up the price."""
_WIDEST = 6.0
"""The largest i to either side."""
_MEMORY = 0.02
"""How much a step counts in the mean of σ²: the last fifty steps."""


class Steered(Regularizer):
    """A penalty whose strength follows the density of the mask."""

    needs_density = True
    steers_density = True

    guess: ClassVar[float] = 0.02
    """κ: the unit of the price; a search begins with about as much."""
    quick: ClassVar[float] = 16.0
    """K_p: how strongly the price answers an error at once."""
    slow: ClassVar[float] = 40.0
    """K_i: how strongly it answers one that lasts a whole search."""
    relaxed: ClassVar[float] = math.sqrt(2)
    """How far above the target the density rises at the end, for the last freeze to choose from."""

    end: float = Field(
        default=0.65, gt=0, lt=1, description="fraction of the search that reaches the target (t₁)"
    )

    @abstractmethod
    def pull(self, values: list[Tensor]) -> list[Tensor]:
        """Return the derivative of the penalty for λ = 1."""

    def init_state(self, weights: Tensors) -> Tensors:
        """Begin without experience."""
        like = next(iter(weights.values()))
        wide = torch.promote_types(like.dtype, torch.float32)
        names = ("strength", "integral", "variance", "first")
        return {name: torch.zeros((), dtype=wide, device=like.device) for name in names}

    def strength(self, now: Now) -> Tensor:
        """Return λ of the last step."""
        return now.state["strength"]

    def add_gradient_(self, gradients: Tensors, values: Tensors, now: Now) -> None:
        """Set λ by what is measured in this step, and add its pull."""
        self._measure_(list(gradients.values()), max(1, total(values)), now)
        pulls = self.pull(list(values.values()))
        torch._foreach_mul_(pulls, now.state["strength"].to(pulls[0].dtype))
        torch._foreach_add_(list(gradients.values()), pulls)

    def _measure_(self, gradients: list[Tensor], count: int, now: Now) -> None:
        """Bring the state up to date: nothing here is read back from the device."""
        state, wide = now.state, now.state["variance"].dtype
        density = now.density.to(wide).clamp_min(0.5 / count)
        state["first"].copy_(torch.where(state["first"] == 0, density, state["first"]))
        # Pruned weights have no gradient; the density is close to what is alive.
        norms = torch.stack(torch._foreach_norm(gradients, 2)).to(wide)
        weight = (1 / now.step).clamp(_MEMORY, 1).to(wide)
        state["variance"].lerp_(norms.square().sum() / (count * density), weight)
        error = (density / self.wanted(now)).log().clamp(-_FARTHEST, _FARTHEST)
        calm = min(1.0, now.steps / _SHORT)
        state["integral"].add_(calm * self.slow / now.steps * error).clamp_(-_WIDEST, _WIDEST)
        price = self.price(1 + calm * self.quick * error + state["integral"])
        state["strength"].copy_(self.guess * state["variance"].sqrt() * price)

    def price(self, level: Tensor) -> Tensor:
        """Return the price in units of κσ."""
        return level.sinh()

    def wanted(self, now: Now) -> Tensor:
        """Return the density that the mask should have now: c."""
        first, part = now.state["first"], now.progress.to(now.state["first"].dtype)
        down = (now.target / first) ** (part / self.end).clamp_max(1)
        up = torch.pow(self.relaxed, ((part - self.end) / (1 - self.end)).clamp_min(0))
        return (first * down * up).clamp_max(1)


class Auto(Steered):
    """Pull scores down as strongly as the target density takes: λ follows the mask in every step.

    λ·Σp² or λ·Σ|p|, over all scores, frozen ones too. The density of the mask falls in equal ratios
    from that of the first mask to the target. Nothing needs tuning (docs/auto-lambda.md).
    """

    name = "auto"
    argument = "form"

    form: Literal["l1", "l2"] = Field(
        default="l2", description="l2 shrinks scores in proportion, l1 all by the same amount"
    )

    def penalty(self, values: Tensors, now: Now) -> Tensor:
        """Return λ·Σp², or λ·Σ|p|."""
        sums = [
            value.square().sum() if self.form == "l2" else value.abs().sum()
            for value in values.values()
        ]
        return self.strength(now) * torch.stack(sums).sum()

    def pull(self, values: list[Tensor]) -> list[Tensor]:
        """Return 2p, or the sign of p."""
        if self.form == "l1":
            return list(torch._foreach_sign(values))
        return list(torch._foreach_mul(values, 2))


@hookimpl
def gemkit_regularizers() -> list[type[Regularizer]]:
    """Register the penalty."""
    return [Auto]
