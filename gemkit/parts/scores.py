"""Scores: how important every weight is, measured or learned."""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch

from gemkit.core.probe import Probe, Wanted
from gemkit.core.tensors import Tensors
from gemkit.parts.part import Part


class Scores(Part):
    """How important every weight is."""

    needs_signal: ClassVar[bool] = True
    """Whether the ranking depends on the loss or the output, so that it says nothing about layers
    that no gradient reaches."""

    @abstractmethod
    def importance(self, probe: Probe) -> Tensors:
        """Rank the weights: one tensor per prunable weight, of its shape; higher = keep."""

    def batches_wanted(self) -> Wanted:
        """Say which training data the engine should hand over in `probe.batches`.

        `Wanted(batches=1)` is one batch; `Wanted(batches=2, per_class=10)` is two that together
        hold ten samples of every class.
        """
        return Wanted()


class MeasuredScores(Scores):
    """Scores computed from the network whenever a freeze asks for them."""


PAPER_STEPS = 150 * 391
"""Optimizer steps of the paper's ResNet-20 search: 150 epochs of CIFAR-10 in batches of 128."""


class LearnedScores(Scores):
    """Scores that are trained by gradient descent while the weights stand still."""

    unit_interval: ClassVar[bool] = False
    """Whether `view` always lies in [0, 1], so that it can be rounded against a threshold."""

    fastest_lr: ClassVar[float] = 0.1
    """The highest learning rate that suits a short search."""

    default_optimizer: ClassVar[Literal["sgd", "adam", "adamw"]] = "sgd"
    """The optimizer of a search whose plan names none."""

    default_weight_decay: ClassVar[float] = 0.0
    """How strongly the optimizer decays the scores where nothing else is asked for."""

    @abstractmethod
    def init(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Draw the first scores, on the CPU, one tensor per weight and of its shape."""

    @abstractmethod
    def view(self, scores: Tensors) -> Tensors:
        """Turn raw scores into what is ranked and rounded, element by element."""

    @abstractmethod
    def slope(self, scores: Tensors) -> Tensors | None:
        """Return the derivative of `view`, element by element, or None where it is 1 everywhere."""

    @abstractmethod
    def project_(self, scores: Tensors) -> None:
        """Bring scores back, in place and element by element, to where they are allowed to be."""

    def default_lr(self, steps: int) -> float:
        """Return the learning rate of the default optimizer, for a search of this many steps.

        It is used where none is given. For SGD it is the paper's 0.1 for the paper's length, and
        proportionally more for fewer steps, up to `fastest_lr`: scores have a way to go, so what
        counts is the sum of the learning rates.
        """
        return min(self.fastest_lr, max(0.1, 0.1 * PAPER_STEPS / max(1, steps)))

    def importance(self, probe: Probe) -> Tensors:
        """Rank the weights by the learned scores."""
        return self.view(probe.scores)
