"""Check, before training, that a network has an output for every label.

The loss would only report an index out of range, and on a GPU at some later step.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gemkit.core.probe import in_mode, no_output
from gemkit.core.tensors import call_with
from gemkit.data.source import Data


def check_labels(
    model: nn.Module, data: Data, splits: Iterable[str] = ("train", "validation", "test")
) -> None:
    """Refuse a data set with labels that the network has no output for."""
    outputs = _outputs(model, data.shape)
    for name in splits:
        labels: Tensor = getattr(data, name).targets()
        highest = int(labels.max()) if labels.numel() else -1
        if outputs is not None and highest >= outputs:
            raise no_output(f"the {name} split of '{data.name}'", highest, outputs)


@torch.no_grad()
def _outputs(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Count the outputs in a forward pass; None if they are no logits.

    Modes, buffers and random generators are restored.
    """
    like = next(model.parameters())
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = [like.device] if like.device.type == "cuda" else []
    with in_mode(model, training=False), torch.random.fork_rng(devices):
        logits = call_with(model, buffers, torch.zeros(2, *shape).to(like))
    return logits.shape[1] if isinstance(logits, Tensor) and logits.ndim > 1 else None
