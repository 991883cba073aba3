"""Objectives: losses by name."""

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from gemkit.core.probe import Batch
from gemkit.parts.now import Now
from gemkit.parts.objective import Objective
from gemkit.plugins.markers import hookimpl


class CrossEntropy(Objective):
    """Cross-entropy of classes, with label smoothing on request."""

    name = "cross_entropy"

    smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="share of a label that all classes share alike"
    )

    def loss(self, outputs: Tensor, batch: Batch, now: Now) -> Tensor:
        """Return the mean cross-entropy."""
        return F.cross_entropy(outputs, batch[1], label_smoothing=self.smoothing)


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
    return [CrossEntropy, KullbackLeibler]
