"""Ill health: values that are not finite, noticed early and traced to where they come from.

A healthy step must not wait for the device. So where reading a value costs that, the first bad
step is noted on the device itself, and read when something waits for the device anyway.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gemkit.errors import TrainingError
from gemkit.masking import MaskedNet

_WAY_OUT = (
    "lower the learning rate (now {lr:g}), check the data for values that are not finite, or leave "
    "such steps out with --on-nan skip"
)


class Health:
    """Watches the loss of a network's steps."""

    def __init__(self, net: MaskedNet, device: torch.device, *, at_once: bool) -> None:
        self.net = net
        self.at_once = at_once
        """Whether every loss is looked at in its own step."""
        self._first_bad = torch.zeros((), dtype=torch.int64, device=device)
        self._meant = frozenset(
            name for name, buffer in net.model.named_buffers() if buffer.isinf().any()
        )
        """Buffers that begin with infinities, as causal masks do, and are what they should be."""

    def watch(self, loss: Tensor, step: int) -> bool:
        """Note a loss that is not finite; tell whether to go on, where that can be told."""
        if self.at_once:
            return bool(loss.detach().isfinite())
        fine = loss.detach().isfinite() | (self._first_bad > 0)
        self._first_bad = torch.where(fine, self._first_bad, step)
        return True

    def explain(self, loss: Tensor, step: int, images: Tensor, lr: float) -> TrainingError:
        """Trace a loss that is not finite to where it comes from."""
        where = trace(self.net, images, self._meant)
        return diverged(step, f"the loss is {loss.item()}; {where}", lr)

    def check(self, step: int, lr: float) -> None:
        """Stop if a step had a bad loss since last asked, or what is trained is not finite now."""
        if first := int(self._first_bad):
            by_now = unfinite(self.net, self._meant) or "everything is finite again"
            raise diverged(first, f"the loss is not finite; by now, {by_now}", lr)
        if where := unfinite(self.net, self._meant):
            raise diverged(step, where, lr)


def diverged(step: int, why: str, lr: float) -> TrainingError:
    """Word how training ended."""
    return TrainingError(f"training diverged at step {step}: {why}; {_WAY_OUT.format(lr=lr)}")


def unfinite(net: MaskedNet, meant: Container[str] = ()) -> str | None:
    """Name the first layer with values that are not finite, and not meant to be.

    This takes one look at the device.
    """
    kinds: Mapping[str, Mapping[str, Tensor]] = {
        "scores": net.scores,
        "parameters": dict(net.model.named_parameters()),
        "statistics": {
            name: buffer for name, buffer in net.model.named_buffers() if name not in meant
        },
    }
    places = [(kind, name) for kind, tensors in kinds.items() for name in tensors]
    fine = torch.stack([kinds[kind][name].isfinite().all() for kind, name in places]).tolist()
    for (kind, name), one in zip(places, fine, strict=True):
        if not one:
            return f"the {kind} of '{name}' are not finite"
    return None


@torch.no_grad()
def trace(net: MaskedNet, images: Tensor, meant: Container[str] = ()) -> str:
    """Say where in the network values stop being finite for these images."""
    if not images.isfinite().all():
        return "the images of this batch are not finite"
    if where := unfinite(net, meant):
        return where
    found: list[str] = []
    with _listening(net.model, found):
        net.model(images)
    if found:
        return f"layer '{found[0]}' is the first to put out values that are not finite"
    return "all layers put out finite values"


@contextmanager
def _listening(model: nn.Module, found: list[str]) -> Iterator[None]:
    """Note the names of layers that put out values that are not finite, in order."""

    def heard(name: str, out: object) -> None:
        if isinstance(out, Tensor) and not out.isfinite().all():
            found.append(name)

    def hook(name: str) -> Callable[[nn.Module, object, object], None]:
        return lambda layer, given, out: heard(name, out)

    layers = {name: module for name, module in model.named_modules() if not [*module.children()]}
    handles = [module.register_forward_hook(hook(name)) for name, module in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
