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
        """Return which training data the scores need in `probe.batches`.

        `Wanted(batches=1)` is one batch; `Wanted(batches=2, per_class=10)` is two that together
        hold ten samples of every class.
        """
        return Wanted()


class MeasuredScores(Scores):
    """Scores that are computed from the network at every freeze."""


PAPER_STEPS = 150 * 391
"""Optimizer steps of the paper's ResNet-20 search: 150 epochs of CIFAR-10 in batches of 128."""


class LearnedScores(Scores):
    """Scores that are trained by gradient descent."""

    unit_interval: ClassVar[bool] = False
    """Whether `view` always lies in [0, 1], so that it can be rounded against a threshold."""

    fastest_lr: ClassVar[float] = 0.1
    """The highest learning rate that suits a short search."""

    default_optimizer: ClassVar[Literal["sgd", "adam", "adamw"]] = "sgd"
    """The optimizer of a search, unless the plan sets one."""

    default_weight_decay: ClassVar[float] = 0.0
    """The weight decay of the scores, unless the plan sets one."""

    @abstractmethod
    def init(self, weights: Tensors, rng: torch.Generator) -> Tensors:
        """Draw the initial scores, on the CPU, one tensor per weight and of its shape."""

    @abstractmethod
    def view(self, scores: Tensors) -> Tensors:
        """Return what is ranked and rounded, element by element."""

    @abstractmethod
    def slope(self, scores: Tensors) -> Tensors | None:
        """Return the derivative of `view`, element by element, or None if it is 1 everywhere."""

    @abstractmethod
    def project_(self, scores: Tensors) -> None:
        """Project scores onto their allowed values, in place and element by element."""

    def default_lr(self, steps: int) -> float:
        """Return the learning rate of the default optimizer, for a search of this many steps.

        It is used if the plan sets none. For SGD it is the paper's 0.1 for a search as long as the
        paper's, and proportionally more for fewer steps, up to `fastest_lr`: the sum of the
        learning rates limits how far scores can move.
        """
        return min(self.fastest_lr, max(0.1, 0.1 * PAPER_STEPS / max(1, steps)))

    def importance(self, probe: Probe) -> Tensors:
        """Rank the weights by the learned scores."""
        return self.view(probe.scores)
