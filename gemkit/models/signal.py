"""Whether signal and gradient reach every prunable layer of a network.

A score can rank the weights of a layer only if the loss depends on them. In many networks it does
not at initialization: a residual block that ends in a norm of scale 0 passes no signal, and a head
of zeros no gradient. One batch shows it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gemkit.core.errors import ModelError, some
from gemkit.core.probe import Batch, cross_entropy, in_mode
from gemkit.core.prunable import weights_of
from gemkit.core.tensors import Tensors, as_input, call_with, names_where, parameters_of, seeded

_FAINT = 1e-4
"""A layer is faint if |w · ∂L/∂w| is this much smaller than in the largest layer, both in sum and
on average. A layer scale of 1e-5 makes it so; layers of different sizes alone do not."""


@dataclass(frozen=True)
class Signal:
    """What one batch shows about the prunable layers, by the names of their weights."""

    unused: tuple[str, ...] = ()
    """They have no effect on the output."""
    dead: tuple[str, ...] = ()
    """Their gradient is exactly zero in every entry."""
    faint: tuple[str, ...] = ()
    """Their gradient is next to zero."""
    blind: tuple[str, ...] = ()
    """Their input is the same for every image."""
    constant: bool = False
    """The output is the same for every image."""

    def sentences(self, layers: int) -> list[str]:
        """Return sentences about what was found, out of this many layers."""
        little = f"less than {_FAINT:g} of the largest layer's |w · ∂L/∂w|"
        found = [
            (self.unused, "takes no part", "take no part", "in computing the output"),
            (self.dead, "gets", "get", "no gradient"),
            (self.faint, "has", "have", little),
            (self.blind, "sees", "see", "the same input for every image"),
        ]
        lines = [
            f"{len(names)} of {layers} prunable layers {one if len(names) == 1 else many} {what} "
            f"({some(names, 3)})"
            for names, one, many, what in found
            if names
        ]
        return ["the output is the same for every image", *lines] if self.constant else lines


def trace(
    model: nn.Module,
    names: Sequence[str],
    batch: Batch,
    objective: Callable[[Tensor, Batch], Tensor] = cross_entropy,
) -> Signal:
    """Run one batch forward and backward, without changing the model.

    Norms use the statistics of the batch, as in training. Dropout and stochastic depth are off:
    they would disconnect layers at random.
    """
    parameters = parameters_of(model, names)
    images = as_input(batch[0], next(iter(parameters.values())))
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    leaves = {name: parameters[name].detach().requires_grad_() for name in names}
    blind: Tensors = {}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with (
        seeded(0, images.device),
        torch.enable_grad(),
        _batch_statistics(model),
        _watched(model, parameters, len(images), blind),
    ):
        output = call_with(model, {**state, **buffers, **leaves}, images)
        if not isinstance(output, Tensor):
            raise ModelError(
                f"{type(model).__name__} returns something of type {type(output).__name__}, where "
                "gemkit needs one tensor of logits"
            )
        if not output.requires_grad:
            return Signal(unused=tuple(names))
        loss = objective(output.float(), (images, batch[1]))
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    gradients = {name: own for name, own in zip(leaves, found, strict=True) if own is not None}
    still = {name: ~own.any() for name, own in gradients.items()}
    same = {"output": (output.detach() == output.detach()[:1]).all()} if len(images) > 1 else {}
    dead, same_input, constant = names_where(still, blind, same)
    moved = {name: leaves[name] for name in gradients if name not in dead}
    return Signal(
        unused=tuple(name for name in names if name not in gradients),
        dead=tuple(dead),
        faint=_faint(moved, gradients),
        blind=tuple(name for name in names if name in same_input),
        constant=bool(constant),
    )


def _faint(weights: Tensors, gradients: Tensors) -> tuple[str, ...]:
    """Name the layers with a gradient whose |w · ∂L/∂w| is next to zero.

    The gradients are overwritten, to save memory.
    """
    sums = [
        gradients[name].mul_(own.detach()).abs_().sum().float() for name, own in weights.items()
    ]
    if not sums:
        return ()
    total = torch.stack(sums).cpu()
    mean = total / torch.tensor([own.numel() for own in weights.values()])
    faint = (total < _FAINT * total.max()) & (mean < _FAINT * mean.max())
    return tuple(name for name, is_faint in zip(weights, faint.tolist(), strict=True) if is_faint)


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, except for batch norms."""
    with in_mode(model, training=False):
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.training = True
        yield


@contextmanager
def _watched(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], batch: int, blind: Tensors
) -> Iterator[None]:
    """Record for every prunable weight whether its layer gets the same input for every image.

    Inputs with fewer rows than images are ignored: they may be a table of positions.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    layers = {
        layer: [names[id(own)] for own in map(layer._parameters.get, kinds) if id(own) in names]
        for layer in model.modules()
        if (kinds := weights_of(layer))
    }

    def watch(layer: nn.Module, inputs: tuple[object, ...]) -> None:
        seen = inputs[0] if inputs else None
        if not isinstance(seen, Tensor) or seen.ndim < 2 or len(seen) < max(2, batch):
            return
        same = (seen.detach() == seen.detach()[:1]).all()
        for name in layers[layer]:
            blind[name] = blind[name] & same if name in blind else same

    handles = [layer.register_forward_pre_hook(watch) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
