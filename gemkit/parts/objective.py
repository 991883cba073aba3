"""Objectives: what training minimizes, and the metric that goes with it."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, field_serializer
from torch import Tensor

from gemkit.core.errors import DataError, TrainingError
from gemkit.core.probe import IGNORED, Batch
from gemkit.core.text import text_of
from gemkit.parts.now import Now
from gemkit.parts.part import Part

Targets = Literal["classes", "labels", "values", "any"]
"""What targets are: the number of a class, several labels that are 0 or 1, or real numbers."""


class Objective(Part):
    """A loss."""

    needs_dense: ClassVar[bool] = False
    """Whether it compares with the dense network, `now.dense`."""

    targets: ClassVar[Targets] = "classes"
    """What its targets are: "classes", "labels" (several, 0 or 1), "values" (real numbers), or
    "any"."""

    metric: ClassVar[str] = "accuracy"
    """The metric of a run with this objective, unless the run names another."""

    @abstractmethod
    def loss(self, outputs: Tensor, batch: Batch, now: Now) -> Tensor:
        """Return the loss of a batch, a scalar, differentiable in the outputs.

        Where gradients are accumulated, it is called for every part of a batch.
        """


class CrossEntropy(Objective):
    """Cross-entropy of classes, with label smoothing on request."""

    name = "cross_entropy"

    weight: float = Field(default=1.0, gt=0, description="factor of the cross-entropy")
    smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="share of a label that all classes share alike"
    )

    def loss(self, outputs: Tensor, batch: Batch, now: Now) -> Tensor:
        """Return the mean cross-entropy; 0 for a map in which no place counts."""
        targets, smoothing = batch[1], self.smoothing
        if targets.ndim == 1 or targets.dtype != torch.int64:
            loss = F.cross_entropy(outputs, targets, label_smoothing=smoothing)
        else:
            loss = F.cross_entropy(outputs, targets, reduction="sum", label_smoothing=smoothing)
            loss = loss / (targets != IGNORED).sum().clamp(min=1)
        return loss if self.weight == 1 else self.weight * loss


class FunctionObjective(Objective):
    """A function of outputs and targets, from Python. Files name it and never call it."""

    name = "function"
    targets = "any"
    metric = "loss"

    function: Callable[..., Any] = Field(description="returns the loss of outputs and targets")

    def loss(self, outputs: Tensor, batch: Batch, now: Now) -> Tensor:
        """Call the function, and refuse anything but a scalar tensor.

        Real targets have the shape of the outputs, if only dimensions of size 1 differ.
        """
        loss = self.function(outputs, _aligned(batch[1], outputs))
        if isinstance(loss, Tensor) and loss.ndim == 0:
            return loss
        what = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise TrainingError(
            f"objective {text_of(self.function)!r} returns {what}; it must return a tensor with "
            "one number, such as the mean over the batch"
        )

    @field_serializer("function", when_used="json")
    def _as_text(self, function: Callable[..., Any]) -> str:
        return text_of(function)


def _aligned(targets: Tensor, outputs: Tensor) -> Tensor:
    """Return real targets in the shape of the outputs, if only dimensions of size 1 differ."""
    real = isinstance(targets, Tensor) and targets.is_floating_point()
    if not real or _lengths(targets.shape) != _lengths(outputs.shape):
        return targets
    return targets.reshape(outputs.shape)


def matched(targets: Tensor, outputs: Tensor) -> Tensor:
    """Return targets in the shape and number format of the outputs.

    Dimensions of size 1 do not count, so [samples] fits outputs of [samples, 1]. Anything else
    would be broadcast, and compared with the wrong outputs.
    """
    check_shapes(targets.shape, outputs.shape, "these")
    return targets.to(outputs.dtype).reshape(outputs.shape)


def check_shapes(targets: Sequence[int], outputs: Sequence[int], whose: str) -> None:
    """Refuse targets that do not have one number for every output."""
    if _lengths(targets) != _lengths(outputs):
        raise DataError(
            f"{whose} targets have shape {list(targets[1:])} for each sample, and the network has "
            f"outputs of shape {list(outputs[1:])}; both must be the same"
        )


def _lengths(shape: Sequence[int]) -> list[int]:
    return [*shape[:1], *(length for length in shape[1:] if length != 1)]
