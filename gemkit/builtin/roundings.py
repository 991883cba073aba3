"""Roundings: from learned scores to the mask of the forward pass."""

from collections.abc import Iterable

import torch
from pydantic import Field
from torch import Tensor

from gemkit.hookspecs import hookimpl
from gemkit.parts import Rounding
from gemkit.selection import Shares, keep_top, keep_top_blindly
from gemkit.tensors import Tensors


class Threshold(Rounding):
    """Keep a weight while its score is above a threshold: m = 1[p > threshold], strictly.

    Gradients pass straight through, so a weight that is off but alive can come back.
    """

    name = "threshold"
    scope = "element"
    needs_unit_interval = True

    threshold: float = Field(default=0.5, ge=0, lt=1, description="a score at it is off")

    def masks(
        self, view: Tensors, alive: Tensors, shares: Shares, rng: torch.Generator
    ) -> Iterable[tuple[str, Tensor]]:
        """Compare every score with the threshold."""
        for name, score in view.items():
            # Written in the scores' own type: torch does not vectorize what mixes in booleans.
            yield name, torch.gt(score, self.threshold, out=torch.empty_like(score))


class Bernoulli(Rounding):
    """Keep each weight with probability equal to its score, drawn anew in every step.

    The ticket is the last draw, which is also the network that was last evaluated.
    """

    name = "bernoulli"
    needs_unit_interval = True

    def masks(
        self, view: Tensors, alive: Tensors, shares: Shares, rng: torch.Generator
    ) -> Iterable[tuple[str, Tensor]]:
        """Draw m ~ Bernoulli(p)."""
        for name, score in view.items():
            yield name, torch.rand(score.shape, generator=rng).to(score.device) < score


class TopK(Rounding):
    """Keep just the budget: the highest scores within each share of the allocation.

    With allocation `uniform` every layer keeps its top fraction (Edge-Popup); with `global` the
    whole network competes (Global EP); with `erk` layers get their Erdős–Rényi shares.
    """

    name = "topk"
    scope = "share"
    ranks = True
    spends_budget = True

    def masks(
        self, view: Tensors, alive: Tensors, shares: Shares, rng: torch.Generator
    ) -> Iterable[tuple[str, Tensor]]:
        """Select exactly as a freeze would, but for this step only."""
        at_hand = all(score.is_cpu for score in view.values())
        select = keep_top if at_hand else keep_top_blindly
        return select(view, alive, shares).items()


class Open(Rounding):
    """Keep everything that is alive; only freezing prunes."""

    name = "open"
    scope = "element"
    takes_measured = True

    def masks(
        self, view: Tensors, alive: Tensors, shares: Shares, rng: torch.Generator
    ) -> Iterable[tuple[str, Tensor]]:
        """Return what is alive."""
        return alive.items()


@hookimpl
def gemkit_roundings() -> list[type[Rounding]]:
    """Register the roundings."""
    return [Threshold, Bernoulli, TopK, Open]
