"""How a layer's weights stand still beside the network: whole, or a byte each if of one size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gemkit.pieces import Cut


class Living(Protocol):
    """Some weights of a layer, and which of them live. What it returns is not to be written to."""

    @property
    def alive(self) -> Tensor:
        """Which of them live."""

    def living(self) -> Tensor:
        """Return the weights with zeros for dead ones."""

    def seen(self, view: Callable[[Tensor], Tensor]) -> Living:
        """Return some of them, by what takes these out of a tensor."""

    def split(self, cut: Cut) -> Sequence[Living]:
        """Return the pieces into which a layer is cut, sharing its memory."""


class Standing(Protocol):
    """The weights of a layer, dead ones too. What it returns is not to be written to."""

    @property
    def weights(self) -> Tensor:
        """All weights, as they are without any mask."""

    @property
    def parts(self) -> Living:
        """Those that live, to be taken apart."""

    def under(self, alive: Tensor) -> Standing:
        """Return the same weights, of which just these live."""


@dataclass(frozen=True)
class Whole:
    """Weights of any sizes, kept as they are, with a byte each that says whether they live."""

    weights: Tensor
    alive: Tensor
    all_live: bool

    @classmethod
    def of(cls, weight: Tensor) -> Whole:
        """Keep these weights themselves; all of them live."""
        return cls(weight, torch.ones_like(weight, dtype=torch.bool), all_live=True)

    @property
    def parts(self) -> Whole:
        """Themselves."""
        return self

    def living(self) -> Tensor:
        """Return the weights with zeros for dead ones: themselves where none is dead."""
        if self.all_live:
            return self.weights
        ones = torch.empty_like(self.weights).copy_(self.alive.view(torch.uint8))
        return ones.mul_(self.weights)

    def under(self, alive: Tensor) -> Whole:
        """Return the same weights, of which just these live."""
        own = torch.empty_like(self.weights, dtype=torch.bool).copy_(alive)
        return Whole(self.weights, own, bool(own.all()))

    def seen(self, view: Callable[[Tensor], Tensor]) -> Whole:
        """Return some of them."""
        return Whole(view(self.weights), view(self.alive), self.all_live)

    def split(self, cut: Cut) -> list[Whole]:
        """Return the pieces into which a layer is cut."""
        parts = zip(cut.split(self.weights), cut.split(self.alive), strict=True)
        return [Whole(*part, self.all_live) for part in parts]


@dataclass(frozen=True)
class Signs:
    """Weights that differ in nothing but their signs: a byte each, −1 or 1, and 0 if dead."""

    signs: Tensor
    size: float
    dtype: torch.dtype

    @property
    def alive(self) -> Tensor:
        """Which of them live."""
        return self.signs.abs().clamp_(max=1).view(torch.bool)  # faster than to compare

    def living(self) -> Tensor:
        """Return the weights with zeros for dead ones."""
        return self.numbers(self.signs)

    def numbers(self, signs: Tensor) -> Tensor:
        """Turn signs into weights."""
        return torch.empty_like(signs, dtype=self.dtype).copy_(signs).mul_(self.size)

    def seen(self, view: Callable[[Tensor], Tensor]) -> Signs:
        """Return some of them."""
        return replace(self, signs=view(self.signs))

    def split(self, cut: Cut) -> list[Signs]:
        """Return the pieces into which a layer is cut."""
        return [replace(self, signs=part) for part in cut.split(self.signs)]


@dataclass(frozen=True)
class WornSigns(Signs):
    """The same, doubled where the mask that the network wears has a one."""

    def living(self) -> Tensor:
        """Return the weights with zeros for dead ones."""
        return super().living().clamp_(-self.size, self.size)

    def wear_(self, mask: Tensor) -> None:
        """Note a mask of zeros and ones; dead weights stay out whatever it says."""
        self.signs.clamp_(-1, 1).mul_(mask.to(torch.int8).add(1))

    def write_(self, weight: Tensor) -> None:
        """Write the weights under the mask that was noted."""
        weight.copy_(self.signs).mul_(self.size / 2)
        torch.ops.aten.hardshrink.out(weight, 0.75 * self.size, out=weight)


@dataclass(frozen=True)
class Signed:
    """A layer whose weights differ in nothing but their signs.

    Those of dead weights are needed at the end alone, so there is a single bit for each.
    """

    parts: Signs
    negative: np.ndarray

    @classmethod
    def of(cls, weight: Tensor) -> Signed | None:
        """Keep the signs of these weights, all of which live; None if they differ in size."""
        if not weight.numel():
            return None
        low, high = (float(size) for size in weight.abs().aminmax())
        if low != high or not 2 * torch.finfo(weight.dtype).tiny <= high < math.inf:
            return None  # half of it must be exact, too
        signs = torch.empty_like(weight, dtype=torch.int8).copy_(weight.sign())
        return cls(Signs(signs, high, weight.dtype), np.packbits((signs < 0).cpu().numpy()))

    @property
    def weights(self) -> Tensor:
        """All weights."""
        return self.parts.numbers(self._signs())

    def under(self, alive: Tensor) -> Signed:
        """Return the same weights, of which just these live."""
        return replace(self, parts=self.parts.seen(lambda _: self._signs().mul_(alive)))

    def wearing(self) -> Signed:
        """Return the same weights, whose bytes also note what mask the network wears."""
        own = self.parts
        return replace(self, parts=WornSigns(own.signs, own.size, own.dtype))

    def _signs(self) -> Tensor:
        """Return the signs of all weights, laid out as those of the living are."""
        like = self.parts.signs
        negative = torch.from_numpy(np.unpackbits(self.negative, count=like.numel()))
        return torch.empty_like(like).copy_(negative.view(like.shape)).mul_(-2).add_(1)


def stand(weight: Tensor) -> Standing:
    """Keep the weights of a layer, which all live, in as little memory as they allow."""
    return Signed.of(weight) or Whole.of(weight)
