"""Roundings: from learned scores to the mask of the forward pass."""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from gemkit.core.selection import never_traced
from gemkit.core.tensors import Tensors
from gemkit.parts.now import Now
from gemkit.parts.rounding import Rounding
from gemkit.plugins.markers import hookimpl


class Threshold(Rounding):
    """Keep a weight while its score is above a threshold: m = 1[p > threshold], strictly.

    Gradients pass straight through, so a weight that is off but alive can come back.
    """

    name = "threshold"
    needs_unit_interval = True

    threshold: float = Field(default=0.5, ge=0, lt=1, description="a score at it is off")

    def masks(self, view: Tensors, now: Now) -> Tensors:
        """Compare every score with the threshold: 1 where the sign of p − threshold is 1.

        There is no `_foreach_` comparison. This one is exact, because different numbers have a
        difference that is not zero, as long as the processor does not flush denormal numbers.
        """
        masks = torch._foreach_sub(list(view.values()), self.threshold)
        torch._foreach_sign_(masks)
        torch._foreach_clamp_min_(masks, 0)
        return dict(zip(view, masks, strict=True))


@never_traced
def uniform_like(tensors: Sequence[Tensor], rng: torch.Generator) -> list[Tensor]:
    """Draw numbers from [0, 1) for every entry, with the strides of the tensors, in one transfer.

    They are the numbers that one draw after the other would give, each in C order.
    """
    sizes = [tensor.numel() for tensor in tensors]
    drawn = torch.rand(sum(sizes), generator=rng)
    laid = torch.empty_like(drawn)
    for part, place, like in zip(
        torch.split(drawn, sizes), torch.split(laid, sizes), tensors, strict=True
    ):
        _as_laid(place, like).copy_(part.view(like.shape))
    parts = torch.split(laid.to(tensors[0].device), sizes)
    return [_as_laid(part, like) for part, like in zip(parts, tensors, strict=True)]


def _as_laid(flat: Tensor, like: Tensor) -> Tensor:
    """View a flat tensor with the shape of another, and the strides it has without gaps."""
    strides = torch.empty_like(like, device="meta").stride()
    return flat.as_strided(like.shape, strides, flat.storage_offset())


class Bernoulli(Rounding):
    """Keep each weight with probability equal to its score, drawn anew in every step.

    The ticket is the last draw, which is also the network that was last evaluated.
    """

    name = "bernoulli"
    needs_unit_interval = True

    def masks(self, view: Tensors, now: Now) -> Tensors:
        """Draw m ~ Bernoulli(p): 1 where p − u is positive, as in `Threshold`."""
        scores = list(view.values())
        masks = torch._foreach_sub(scores, uniform_like(scores, now.rng))
        torch._foreach_sign_(masks)
        torch._foreach_clamp_min_(masks, 0)
        return dict(zip(view, masks, strict=True))


class TopK(Rounding):
    """Keep just the budget: the highest scores within each share of the allocation.

    With allocation `uniform` every layer keeps its top fraction (Edge-Popup); with `global` the
    whole network competes (Global EP); with `erk` layers get their Erdős–Rényi shares.
    """

    name = "topk"
    spends_budget = True

    def masks(self, view: Tensors, now: Now) -> Tensors:
        """Select exactly as a freeze would, but for this step only."""
        return now.select(view)


class Open(Rounding):
    """Keep everything that is alive; only freezing prunes."""

    name = "open"
    takes_measured = True

    def masks(self, view: Tensors, now: Now) -> Tensors:
        """Return what is alive."""
        return now.alive


@hookimpl
def gemkit_roundings() -> list[type[Rounding]]:
    """Register the roundings."""
    return [Threshold, Bernoulli, TopK, Open]
