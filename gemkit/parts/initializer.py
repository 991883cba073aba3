"""Initializers: the initial weights."""

from abc import abstractmethod

import torch

from gemkit.core.tensors import Tensors
from gemkit.parts.part import Part


class Initializer(Part):
    """Draws the initial weights."""

    @abstractmethod
    def draw(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Return initial weights for tensors of these shapes, on the CPU, drawn from `rng`."""
