"""Objectives: losses by name."""

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from gemkit.core.probe import Batch
from gemkit.parts.now import Now
from gemkit.parts.objective import CrossEntropy, Objective, matched
from gemkit.plugins.markers import hookimpl

__all__ = ["BinaryCrossEntropy", "CrossEntropy", "KullbackLeibler", "MeanSquaredError"]


class MeanSquaredError(Objective):
    """Mean squared error of real values, one for every output."""

    name = "mse"
    targets = "values"
    metric = "mean_squared_error"

    def loss(self, outputs: Tensor, batch: Batch, now: Now) -> Tensor:
        """Return the mean of (output − target)², over samples and outputs."""
        return F.mse_loss(outputs, matched(batch[1], outputs))


class BinaryCrossEntropy(Objective):
    """Binary cross-entropy of several labels: each output is the logit of one of them."""

    name = "binary"
    targets = "labels"
    metric = "multilabel_accuracy"

    def loss(self, outputs: Tensor, batch: Batch, now: Now) -> Tensor:
        """Return the mean binary cross-entropy, over samples and labels."""
        return F.binary_cross_entropy_with_logits(outputs, matched(batch[1], outputs))


class KullbackLeibler(Objective):
    """Kullback-Leibler divergence from the outputs of the dense network on the same batch.

    weight · KL(p_sparse ‖ p_dense), for searches that leave the weights as they are: the ticket
    learns to compute what the whole network computes. It uses no labels.
    """

    name = "kl"
    needs_dense = True

    weight: float = Field(default=1.0, gt=0, description="factor of the divergence")

    def loss(self, outputs: Tensor, batch: Batch, now: Now) -> Tensor:
        """Return Σ p_sparse · (ln p_sparse − ln p_dense), its mean over the batch."""
        sparse, dense = (F.log_softmax(own, 1) for own in (outputs, now.dense(batch[0])))
        return self.weight * F.kl_div(dense, sparse, reduction="batchmean", log_target=True)


@hookimpl
def gemkit_objectives() -> list[type[Objective]]:
    """Register the objectives."""
    return [CrossEntropy, MeanSquaredError, BinaryCrossEntropy, KullbackLeibler]
