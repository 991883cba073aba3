"""Initializers: the starting weights."""

from abc import abstractmethod

import torch

from gemkit.core.tensors import Tensors
from gemkit.parts.part import Part


class Initializer(Part):
    """Where the weights begin."""

    @abstractmethod
    def draw(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Return the starting weights (CPU, drawn from `rng`) for tensors of these shapes."""
