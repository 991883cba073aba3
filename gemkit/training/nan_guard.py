"""Detect values that are not finite, and trace them to the layer they come from.

A step must not synchronize with the device. Where reading a value would, the first bad step is
recorded on the device and read when something synchronizes anyway.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gemkit.core.errors import TrainingError
from gemkit.training.network import TrainedNet

_WAY_OUT = (
    "lower the learning rate (now {lr:g}), check the data for values that are not finite, or skip "
    "such steps with --on-nan skip"
)


class NanGuard:
    """Watches the loss of every step."""

    def __init__(self, net: TrainedNet, device: torch.device, *, at_once: bool) -> None:
        self.net = net
        self.at_once = at_once
        """Whether every loss is read in its own step."""
        self._first_bad = torch.zeros((), dtype=torch.int64, device=device)
        self._exempt = frozenset(
            name for name, buffer in net.model.named_buffers() if buffer.isinf().any()
        )
        """Buffers that start with infinities, such as causal masks."""

    def watch(self, loss: Tensor, step: int) -> bool:
        """Record a loss that is not finite; return False if that is known at once."""
        if self.at_once:
            return bool(loss.detach().isfinite())
        fine = loss.detach().isfinite() | (self._first_bad > 0)
        self._first_bad = torch.where(fine, self._first_bad, step)
        return True

    def explain(self, loss: Tensor, step: int, images: Tensor, lr: float) -> TrainingError:
        """Trace a loss that is not finite to its source."""
        where = trace(self.net, images, self._exempt)
        return diverged(step, f"the loss is {loss.item()}; {where}", lr)

    def check(self, step: int, lr: float) -> None:
        """Raise if a recorded loss, a score, a parameter or a buffer is not finite."""
        if first := int(self._first_bad):
            by_now = non_finite(self.net, self._exempt) or "everything is finite again"
            raise diverged(first, f"the loss is not finite; by now, {by_now}", lr)
        if where := non_finite(self.net, self._exempt):
            raise diverged(step, where, lr)


def diverged(step: int, why: str, lr: float) -> TrainingError:
    """Return the error for training that diverged."""
    return TrainingError(f"training diverged at step {step}: {why}; {_WAY_OUT.format(lr=lr)}")


def non_finite(net: TrainedNet, exempt: Container[str] = ()) -> str | None:
    """Name the first tensor with values that are not finite, in one transfer from the device."""
    kinds: Mapping[str, Mapping[str, Tensor]] = {
        "scores": net.scores,
        "parameters": dict(net.model.named_parameters()),
        "statistics": {
            name: buffer for name, buffer in net.model.named_buffers() if name not in exempt
        },
    }
    places = [(kind, name) for kind, tensors in kinds.items() for name in tensors]
    fine = torch.stack([kinds[kind][name].isfinite().all() for kind, name in places]).tolist()
    for (kind, name), one in zip(places, fine, strict=True):
        if not one:
            return f"the {kind} of '{name}' are not finite"
    return None


@torch.no_grad()
def trace(net: TrainedNet, images: Tensor, exempt: Container[str] = ()) -> str:
    """Say where values stop being finite in a forward pass of these images."""
    if not images.isfinite().all():
        return "the images of this batch are not finite"
    if where := non_finite(net, exempt):
        return where
    found: list[str] = []
    with _recording(net.model, found):
        net.model(images)
    if found:
        return f"layer '{found[0]}' is the first with outputs that are not finite"
    return "the outputs of all layers are finite"


@contextmanager
def _recording(model: nn.Module, found: list[str]) -> Iterator[None]:
    """Record the names of layers whose outputs are not finite, in order."""

    def hook(name: str) -> Callable[[nn.Module, object, object], None]:
        def record(layer: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not output.isfinite().all():
                found.append(name)

        return record

    layers = {name: module for name, module in model.named_modules() if not [*module.children()]}
    handles = [module.register_forward_hook(hook(name)) for name, module in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
