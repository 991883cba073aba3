"""Roundings: from learned scores to the mask of the forward pass."""

import torch
from pydantic import Field

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


class Bernoulli(Rounding):
    """Keep each weight with probability equal to its score, drawn anew in every step.

    The ticket is the last draw, which is also the network that was last evaluated.
    """

    name = "bernoulli"
    needs_unit_interval = True

    def masks(self, view: Tensors, now: Now) -> Tensors:
        """Draw m ~ Bernoulli(p)."""
        return {
            name: score > torch.rand(score.shape, generator=now.rng).to(score.device)
            for name, score in view.items()
        }


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
