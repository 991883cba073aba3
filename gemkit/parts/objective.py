"""Objectives: what training minimizes."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from gemkit.core.probe import Batch
from gemkit.parts.now import Now
from gemkit.parts.part import Part


class Objective(Part):
    """A loss."""

    needs_dense: ClassVar[bool] = False
    """Whether it compares with the dense network, `now.dense`."""

    @abstractmethod
    def loss(self, outputs: Tensor, batch: Batch, now: Now) -> Tensor:
        """Return the loss of a batch, a scalar, differentiable in the outputs.

        Where gradients are accumulated, it is called for every part of a batch.
        """
