"""Writing effective weights: under a mask, or under the top scores, which are found on the way."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gemkit.pieces import Cut
from gemkit.standing import Living
from gemkit.topk import Flat, as_array, bracket, joined, sample_stride, top


def wear_(weight: Tensor, live: Tensor, mask: Tensor) -> None:
    """Write the living weights under a mask into the network's own."""
    if mask.dtype == torch.bool:  # torch is several times slower when types mix in a product
        mask = weight.copy_(mask.view(torch.uint8))
    torch.mul(live, mask, out=weight)


@dataclass
class Piece:
    """What belongs to some entries of a layer, which go through a step together."""

    layer: str
    start: int
    score: nn.Parameter
    weight: Tensor
    standing: Living

    @cached_property
    def live(self) -> Tensor:
        """The weights that stand still, as far as they live."""
        return self.standing.living()


class Layer(NamedTuple):
    """A layer in one dimension, as it lies in memory."""

    name: str
    cut: Cut
    score: Tensor
    weight: Tensor
    standing: Living


class _Band(NamedTuple):
    """What of a piece lies near the last score to keep, and how much lies above that."""

    layer: str
    size: int
    values: np.ndarray
    positions: np.ndarray
    above: int
    finite: bool
    low: float
    high: float


class TopWearer:
    """Writes the living weights with the highest scores, step after step, and zeros for all others.

    The result is that of `keep_top` and `wear_`, in one pass through the cache instead of many
    through memory, and without a mask. It looks for the last score to keep where that was in the
    step before, or else where a sample of the scores says; what it finds it checks. All weights
    must be alive.
    """

    def __init__(self, count: int, view: Callable[[Tensor], Tensor]) -> None:
        self.count = count
        self.view = view
        self._expected: tuple[float, float] | None = None
        self._last = math.nan
        self._bands: list[_Band] = []

    def wear_early_(self, piece: Piece) -> None:
        """Write the weights of a piece whose scores have just moved, if it is known how."""
        if self._expected:
            self._bands.append(_sort_out_(piece, self.view, *self._expected))

    def wear_(self, layers: Sequence[Layer], pieces: Iterable[Piece]) -> bool:
        """Write what is left to write, of these layers, which are always the same.

        Where no quick way leads to the end (few scores, many ties, scores that are not finite)
        this returns False, and what has been written by then must be written over.
        """
        early, self._bands = self._bands, []
        if early and self._settle_(layers, early):
            return True
        self._expected = None
        size = sum(len(layer.score) for layer in layers)
        if (stride := sample_stride(size)) is None:
            return False
        sample = joined([as_array(self.view(layer.score[::stride])) for layer in layers])
        low, high = bracket(sample, self.count, size)
        bands = [_sort_out_(piece, self.view, low, high) for piece in pieces]
        return self._settle_(layers, bands)

    def _settle_(self, layers: Sequence[Layer], bands: Sequence[_Band]) -> bool:
        """Keep the best of what lies in the bands, if few do and the last to keep is one."""
        wanted = self.count - sum(band.above for band in bands)
        inside, size = sum(len(band.values) for band in bands), sum(band.size for band in bands)
        if size != sum(len(layer.score) for layer in layers):
            return False  # some layers have had no step yet
        if not 0 < wanted <= inside or inside > size // 4 or not all(b.finite for b in bands):
            return False
        near = [_near(layer, bands) for layer in layers]
        last = math.inf
        for layer, (part, positions), mask in zip(
            layers, near, top([part for part, _ in near], wanted), strict=True
        ):
            places = torch.from_numpy(positions[mask])
            layer.weight[places] = layer.standing.seen(partial(_at, places)).living()
            last = min(last, float(part.values[mask].min(initial=math.inf)))
        apart = (bands[0].high - bands[0].low) / inside  # neighbours, around the last one
        self._expect_near(last, apart * max(16, size / 8192))
        return True

    def _expect_near(self, last: float, width: float) -> None:
        """Expect the next one near this last score: within a width, or where it may have moved to.

        How far it moves is not known after a single step, so at first more is allowed for. Where a
        sample did not bound the last score, nothing is known.
        """
        moved = abs(last - self._last) if self._expected else width / 4
        reach = max(width / 2, 4 * moved)
        self._expected = (last - reach, last + reach) if math.isfinite(reach) else None
        self._last = last


def _sort_out_(piece: Piece, view: Callable[[Tensor], Tensor], low: float, high: float) -> _Band:
    """Write a piece as if only scores above `high` were kept, and note those from `low` on."""
    viewed = view(piece.score.detach())
    importance = as_array(viewed)
    over, near = importance > high, importance >= low
    near ^= over
    inside = np.flatnonzero(near)
    # Compares and writes at once. It would keep what is not a number, but that is refused below.
    torch.ops.aten.threshold_backward(piece.live, viewed, high, grad_input=piece.weight)
    return _Band(
        layer=piece.layer,
        size=len(importance),
        values=importance[inside],
        positions=inside + piece.start,
        above=int(np.count_nonzero(over)),
        finite=math.isfinite(viewed.sum()),
        low=low,
        high=high,
    )


def _at(places: Tensor, part: Tensor) -> Tensor:
    return part[places]


def _near(layer: Layer, bands: Sequence[_Band]) -> tuple[Flat, np.ndarray]:
    """Join the bands of a layer: their values, and where in its flat form these are."""
    own = [band for band in bands if band.layer == layer.name]
    positions = joined([band.positions for band in own])
    values = joined([band.values for band in own])
    return Flat(values, place=lambda found: layer.cut.c_order(positions[found])), positions
