"""Structures: which weights are kept or pruned together, and which compete."""

from abc import abstractmethod
from functools import partial
from typing import ClassVar

from torch import Tensor

from gemkit.core.selection import Shares, keep_top, refuse_ties
from gemkit.core.tensors import Tensors
from gemkit.core.units import check_groups, keep_units, living_values, units_of
from gemkit.parts.part import Part


class Structure(Part):
    """The units in which weights are pruned, and the pools in which units compete.

    Importance is summed over a unit, so where layers compete, large units win: choose allocation
    'uniform' or 'erk' for units of very different sizes. Units of all pools of a layer share what
    the allocation gives to the layer. If a layer is one pool, units enter in rank order, and stop
    before the first that would exceed the share. If rounding masks single weights, the ticket is
    what is alive, whatever the recipe's `finalize` says, so that it has the structure.
    """

    plain: ClassVar[bool] = False
    """Whether it prunes single weights in one pool, with exact counts: unstructured pruning."""

    spares_output: ClassVar[bool] = False
    """Whether the last prunable layer is left out: whole units of it would be whole outputs."""

    @abstractmethod
    def fold(self, weight: Tensor) -> Tensor:
        """Arrange the entries of a layer as [pools, units, size]: each once, a view or a copy."""

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a layer of this shape can be folded; others are left out of the search."""
        return True

    def units_of(self, density: float, units: int) -> int | None:
        """Return how many units of a pool stay, or None if the share decides."""
        return None

    def select(
        self,
        importance: Tensors,
        alive: Tensors,
        shares: Shares,
        density: float,
        *,
        in_use: Tensors | None = None,
        checked: bool = True,
    ) -> Tensors:
        """Keep the most important units within each share, as boolean masks.

        With `in_use`, the current mask, a selection among equals is refused (see `refuse_ties`).
        Without `checked`, nothing is read back from the device, and importance must be finite.
        """
        if self.plain:
            return keep_top(importance, alive, shares, in_use=in_use, checked=checked)
        per_pool = partial(self.units_of, density)
        masks = keep_units(importance, alive, shares, self.fold, per_pool, checked=checked)
        if in_use is not None:
            living = living_values(importance, {name: own.bool() for name, own in alive.items()})
            four = (living, alive, masks, in_use)
            refuse_ties(*(units_of(tensors, self.fold) for tensors in four))
        return masks

    def grow(self, importance: Tensors, alive: Tensors, shares: Shares, density: float) -> Tensors:
        """Choose the pruned units that return, as boolean masks: the best within each share.

        Pools that lost more get more back, so that all keep the same number.
        """
        dead = {name: ~mask.bool() for name, mask in alive.items()}
        if self.plain:
            return keep_top(importance, dead, shares)
        per_pool = partial(self.units_of, density)
        return keep_units(importance, dead, shares, self.fold, per_pool, beside=alive)

    def check(self, alive: Tensors, shares: Shares, density: float) -> None:
        """Refuse shares that it cannot select by, before anything is trained."""
        check_groups(alive, shares, self.fold, partial(self.units_of, density))

    def misfit(self, density: float) -> str | None:
        """Return why a ticket of this density cannot have the structure, or None."""
        return None
