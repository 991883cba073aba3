"""Collapse: a layer that lost every weight, or a network whose output ignores its input."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gemkit.core.errors import CollapseError
from gemkit.core.probe import in_mode
from gemkit.core.prunable import frozen_names
from gemkit.core.selection import Shares, keep_top
from gemkit.core.tensors import Tensors, call_with, counts, generator, kept
from gemkit.core.text import number_of


def empty_layers(mask: Tensors) -> tuple[str, ...]:
    """Name the layers that keep no weight; layers without weights do not count."""
    return tuple(
        name for name, count in counts(mask).items() if count == 0 and mask[name].numel() > 0
    )


def keep_one(mask: Tensors, importance: Tensors, alive: Tensors, limit: int) -> Tensors:
    """Give every empty layer its most important living weight, at no more than `limit` in total.

    To stay within the limit, the least important weights of layers that keep more than one are
    dropped. A layer without living weights stays empty.
    """
    living = [name for name, count in counts(alive).items() if count]
    layers = len(living)
    if limit < layers:
        raise CollapseError(
            f"keep-one needs a weight for each of {number_of(layers, 'layer')}, but the density "
            f"leaves only {limit}; raise the density"
        )
    empty = set(empty_layers(mask)) & set(living)
    best = _best(importance, {name: alive[name] for name in living if name in empty})
    grown = {name: best.get(name, layer) for name, layer in mask.items()}
    excess = kept(grown) - limit
    if excess <= 0:
        return grown
    # The best weight of every layer stays; the rest compete for what the limit leaves.
    anchors = _best(importance, grown)
    rest = {name: layer & ~anchors[name] for name, layer in grown.items()}
    chosen = keep_top(importance, rest, {tuple(rest): max(0, kept(rest) - excess)})
    return {name: anchors[name] | chosen[name] for name in grown}


def _best(importance: Tensors, alive: Tensors) -> Tensors:
    """Keep the most important living weight of each layer that has one."""
    shares: Shares = {(name,): min(1, count) for name, count in counts(alive).items()}
    return keep_top({name: importance[name] for name in alive}, alive, shares)


@torch.no_grad()
def is_cut(
    model: nn.Module, mask: Tensors, shape: tuple[int, ...], *, indices: bool = False
) -> bool:
    """Return whether the mask leaves no path from the network's input to its output.

    The network is called with positive weights under the mask, biases and running means of 0, and
    scales of 1, so that signals neither cancel out nor disappear behind a constant. There is a path
    if and only if two different inputs give different outputs; for `indices`, these are 0 and 1. A
    frozen weight without a mask counts as dense.
    """
    rng, dense = generator(0, "paths"), set(frozen_names(model)) - set(mask)
    like, kept_of = next(iter(mask.values())), counts(mask)

    def positive(size: Sequence[int]) -> Tensor:
        return (torch.rand(size, generator=rng) + 0.5).to(like.device)

    positives: Tensors = {}
    for name, parameter in model.named_parameters():
        if name in mask:
            typical = len(parameter) / max(1, kept_of[name])
            positives[name] = (positive(parameter.shape) * mask[name] * typical).to(parameter)
        elif name in dense:
            typical = len(parameter) / max(1, parameter.numel())
            positives[name] = (positive(parameter.shape) * typical).to(parameter)
        elif parameter.ndim == 1:
            scale = 0.0 if name.endswith("bias") else 1.0
            positives[name] = torch.full_like(parameter, scale)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            positives[name] = torch.zeros_like(buffer)
        elif name.endswith("running_var"):
            positives[name] = torch.ones_like(buffer)
    if indices:
        images = torch.stack([torch.zeros(shape), torch.ones(shape)]).long().to(like.device)
    else:
        images = torch.stack([positive(shape), 3 * positive(shape)])
        images = images.to(next(model.parameters()).dtype)
    with in_mode(model, training=False):
        one, other = call_with(model, positives, images).float()
    return bool((one - other).abs().amax() <= 1e-4 * torch.maximum(one.abs(), other.abs()).amax())
