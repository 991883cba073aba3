"""Whether a network has an output for every label, asked once before anything is computed.

Later it would be too late: the loss says no more than that an index is out of range, and on a GPU
it says so at some other step.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gemkit.data.source import Data
from gemkit.errors import DataError
from gemkit.probe import in_mode
from gemkit.wording import number_of


def check_labels(
    model: nn.Module, data: Data, splits: Iterable[str] = ("train", "validation", "test")
) -> None:
    """Refuse a data set with labels that the network has no output for."""
    labels = {
        f"the {name} split of '{data.name}'": getattr(data, name).targets() for name in splits
    }
    refuse_labels(model, data.shape, labels)


def refuse_labels(model: nn.Module, shape: tuple[int, ...], labels: Mapping[str, Tensor]) -> None:
    """Refuse labels that the network has no output for; their keys say where they are from."""
    outputs = _outputs(model, shape)
    for where, own in labels.items():
        highest = int(own.max()) if own.numel() else -1
        if outputs is not None and highest >= outputs:
            raise DataError(
                f"{where} holds label {highest}, and the network has "
                f"{number_of(outputs, 'output')}, for labels 0 to {outputs - 1}; make it a network "
                f"for {number_of(highest + 1, 'class', 'classes')}, or count the labels from 0"
            )


@torch.no_grad()
def _outputs(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Count the outputs in a forward pass that leaves no trace; None where they are no logits."""
    like = next(model.parameters())
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = [like.device] if like.device.type == "cuda" else []
    with in_mode(model, training=False), torch.random.fork_rng(devices):
        logits = functional_call(model, buffers, (torch.zeros(2, *shape).to(like),))
    return logits.shape[1] if isinstance(logits, Tensor) and logits.ndim > 1 else None
