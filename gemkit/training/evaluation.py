"""Measure the accuracy of a network."""

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from gemkit.core.errors import TrainingError
from gemkit.core.probe import in_mode
from gemkit.data.source import Source


@torch.no_grad()
def accuracy(module: nn.Module, source: Source, fabric: Fabric, classes: int) -> float:
    """Return the top-1 accuracy, without augmentation and in evaluation mode."""
    metric = MulticlassAccuracy(classes, average="micro", validate_args=False).to(fabric.device)
    dtype = next(module.parameters()).dtype
    finite = torch.ones((), dtype=torch.bool, device=fabric.device)
    with in_mode(module, training=False):
        for images, labels in source.batches(512, rank=fabric.global_rank, world=fabric.world_size):
            logits: Tensor = module(images.to(dtype))
            metric.update(logits, labels)
            finite &= logits.isfinite().all()
    if not finite:
        raise TrainingError("the network's outputs are not finite: training has diverged")
    return float(metric.compute())
