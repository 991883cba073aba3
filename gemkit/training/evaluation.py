"""Measure how good a network is."""

import math

import torch
import torchmetrics
from lightning_fabric import Fabric
from torch import Tensor, nn

from gemkit.core.errors import DataError, TrainingError
from gemkit.core.probe import IGNORED, in_mode
from gemkit.core.tensors import as_input
from gemkit.data.checks import not_finite
from gemkit.data.source import Source
from gemkit.training.metrics import LOSS
from gemkit.training.task import Task


@torch.no_grad()
def measure(
    module: nn.Module, source: Source, fabric: Fabric, task: Task, split: str = "validation"
) -> float:
    """Return the metric of a network, without augmentation and in evaluation mode.

    `split` names the data in an error.
    """
    metric, meter = task.metric, None
    like, loss = next(module.parameters()), task.loss_of(module)
    finite = torch.ones((), dtype=torch.bool, device=fabric.device)
    with in_mode(module, training=False):
        for inputs, targets in source.batches(
            512, rank=fabric.global_rank, world=fabric.world_size
        ):
            outputs: Tensor = module(as_input(inputs, like))
            if meter is None:
                meter = metric.meter(outputs, targets)
            if not len(targets):
                continue  # the share of a process may be empty
            if metric.name != LOSS:
                meter.update(*metric.prepared(outputs, targets))
            else:
                meter.update(*_weighted(loss(outputs, (inputs, targets)), targets))
            finite &= outputs.isfinite().all()
    if torch.distributed.is_initialized():  # or the others would wait for one that has an error
        torch.distributed.all_reduce(agreed := finite.int(), torch.distributed.ReduceOp.MIN)
        finite = agreed > 0
    if not finite:
        if problem := not_finite(source, split):
            raise DataError(problem)
        raise TrainingError("the network's outputs are not finite: training has diverged")
    return _value(meter, metric.name)


def _weighted(loss: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | int]:
    """Return the mean loss of a batch, and the number of targets that it is the mean of.

    A map of classes without a place that counts has no loss.
    """
    if targets.dtype != torch.int64 or targets.ndim == 1:
        return loss, len(targets)
    counted = (targets != IGNORED).sum()
    return loss.where(counted > 0, 0.0), counted


def _value(meter: torchmetrics.Metric | None, name: str) -> float:
    """Read a metric; one that is not finite cannot be compared or written."""
    value = math.nan if meter is None else float(meter.compute())
    if not math.isfinite(value):
        raise TrainingError(
            f"metric '{name}' is {value} on these data, which it may not be for; choose another"
        )
    return value
