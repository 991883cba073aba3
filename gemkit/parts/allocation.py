"""Allocation: how layers share the budget of weights to keep."""

from abc import abstractmethod

from gemkit.core.selection import Shares
from gemkit.core.tensors import Tensors
from gemkit.parts.part import Part


class Allocation(Part):
    """How layers share the budget of weights to keep."""

    @abstractmethod
    def keep(self, importance: Tensors, alive: Tensors, density: float) -> Shares:
        """Split the budget over groups of layers; weights compete within their group.

        The counts sum to the budget exactly and never exceed what is alive. Called once per freeze.
        """
