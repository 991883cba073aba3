"""Fine-tuning without the channels that a ticket has no use for."""

from typing import Any

from torch import nn

from gemkit import engine
from gemkit.compaction.smaller import compact
from gemkit.data.source import Data
from gemkit.ticket import Ticket


def finetune_compact(ticket: Ticket, model: nn.Module, data: Data, **how: Any) -> Ticket:  # noqa: ANN401
    """Do what `finetune` does, in a smaller network; the result belongs to the original one.

    `how` is what `finetune` takes. What is left of the network learns the same up to rounding,
    unless it draws random numbers for channels, as dropout does. Accuracies on the way may differ
    a little from those under the mask, for evaluation remembers statistics of removed channels.
    """
    small = compact(ticket, model, training=True, shape=data.shape)
    return small.expand(engine.finetune(small.ticket, small.model, data, **how))
