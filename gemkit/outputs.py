"""Whether a network has an output for every label, asked once before anything is computed.

Later it would be too late: the loss says no more than that an index is out of range, and on a GPU
it says so at some other step.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gemkit.data.source import Data
from gemkit.probe import in_mode, no_output
from gemkit.tensors import call_with


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
    """Count the outputs in a forward pass; None where they are no logits.

    Modes, buffers and random numbers are as before; only hooks could tell that it took place.
    """
    like = next(model.parameters())
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = [like.device] if like.device.type == "cuda" else []
    with in_mode(model, training=False), torch.random.fork_rng(devices):
        logits = call_with(model, buffers, torch.zeros(2, *shape).to(like))
    return logits.shape[1] if isinstance(logits, Tensor) and logits.ndim > 1 else None
