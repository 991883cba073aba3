"""Rounding: from learned scores to the mask, or the gates, of a forward pass."""

from abc import abstractmethod
from typing import ClassVar

from gemkit.core.tensors import Tensors
from gemkit.parts.now import Now
from gemkit.parts.part import Part


class Rounding(Part):
    """Turns learned scores into the mask or gates of every forward pass."""

    spends_budget: ClassVar[bool] = False
    """Whether the mask itself keeps exactly the budget, so that nothing needs to be frozen."""
    needs_unit_interval: ClassVar[bool] = False
    """Whether the scores must lie in [0, 1]."""
    takes_measured: ClassVar[bool] = False
    """Whether it works without learned scores."""
    soft: ClassVar[bool] = False
    """Whether it returns gates between 0 and 1 instead of masks; `hard` then makes the ticket."""

    @abstractmethod
    def masks(self, view: Tensors, now: Now) -> Tensors:
        """Return a mask for every layer of `view`, in order: 0 and 1, or booleans.

        With `soft`, return gates from 0 to 1, and define `hard`. Called in every step. The caller
        cuts off what is not alive. Masks of the type of the scores, made by `torch._foreach_`
        functions, take the fewest kernels.
        """

    def slope(self, view: Tensors, masks: Tensors, now: Now) -> Tensors | None:
        """Return d mask / d view element by element; None passes gradients straight through.

        `masks` are those of the forward pass.
        """
        return None

    def hard(self, view: Tensors, now: Now) -> Tensors:
        """Return the mask of the ticket: 0 and 1, or booleans."""
        return self.masks(view, now)
