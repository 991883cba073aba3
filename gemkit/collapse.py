"""Collapse: a layer that lost every weight, or a network whose output ignores its input."""

from typing import Literal

import torch
from torch import Tensor, nn

from gemkit.probe import in_mode
from gemkit.selection import keep_top
from gemkit.tensors import Tensors, kept

CollapsePolicy = Literal["error", "warn", "keep-one"]


def empty_layers(mask: Tensors) -> tuple[str, ...]:
    """Name the layers that keep nothing (layers with no weights to begin with do not count)."""
    counts = torch.stack([layer.count_nonzero() for layer in mask.values()]).tolist()
    return tuple(
        name
        for (name, layer), count in zip(mask.items(), counts, strict=True)
        if count == 0 and layer.numel() > 0
    )


def keep_one(mask: Tensors, importance: Tensors, alive: Tensors, limit: int) -> Tensors:
    """Give every empty layer its most important living weight, without passing the limit.

    What is above the limit afterwards is taken from the least important weights of layers that
    keep more than one. A layer with nothing alive stays empty.
    """
    empty = set(empty_layers(mask))
    best = {
        name: keep_top({name: importance[name]}, {name: alive[name]}, {(name,): 1})[name]
        for name in importance
        if bool(alive[name].any())
    }
    grown = {
        name: best.get(name, layer) if name in empty else layer for name, layer in mask.items()
    }
    excess = kept(grown) - limit
    if excess <= 0:
        return grown
    # The best weight of every layer is safe; the rest compete for what the limit leaves.
    anchors = {
        name: keep_top(
            {name: importance[name]}, {name: layer}, {(name,): min(1, kept({name: layer}))}
        )[name]
        for name, layer in grown.items()
    }
    rest = {name: layer & ~anchors[name] for name, layer in grown.items()}
    chosen = keep_top(importance, rest, {tuple(rest): max(0, kept(rest) - excess)})
    return {name: anchors[name] | chosen[name] for name in grown}


@torch.no_grad()
def ignores_input(module: nn.Module, images: Tensor) -> bool:
    """Tell whether different images give the same output: no path leads through the network."""
    with in_mode(module, training=False):
        logits: Tensor = module(images)
    spread = (logits - logits[:1]).abs().amax()
    return bool(spread <= 1e-6 * logits.abs().amax())
