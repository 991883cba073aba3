"""Count the multiplications (MACs) of convolutions, linear layers and attention.

Matrix products that a network writes out itself, as with `@`, are not counted.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from gemkit.compaction.sparse import SparseLinear
from gemkit.compaction.tracing import Shape
from gemkit.core.probe import in_mode
from gemkit.models.check import blank_inputs

_COUNTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, SparseLinear)


class Macs(NamedTuple):
    """Multiplications for one image: all of them, and those with nonzero weights."""

    total: int
    nonzero: int


def count_macs(model: nn.Module, shape: Shape) -> Macs:
    """Count the multiplications for one image in a forward pass."""
    counts: list[Macs] = []

    def count(layer: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        uses = output.numel() // len(weight)  # each weight is used once per output pixel or row
        if isinstance(layer, SparseLinear):
            counts.append(Macs(uses * weight._nnz(), uses * weight._nnz()))
        else:
            counts.append(Macs(uses * weight.numel(), uses * int(weight.count_nonzero())))

    layers = [layer for layer in model.modules() if isinstance(layer, _COUNTED)]
    inputs = blank_inputs(model, shape, 1)  # before the hooks: it may try the network
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        with in_mode(model, training=False), torch.no_grad(), _Attention(counts):
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return Macs(sum(macs.total for macs in counts), sum(macs.nonzero for macs in counts))


class _Attention(TorchFunctionMode):
    """Count attention, whose functions call no layer; it also turns off PyTorch's fused layers."""

    def __init__(self, counts: list[Macs]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Count a call, and make it: what it calls in turn is not seen."""
        named = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention:
            self.counts.append(_products(*_three(args, named)))
        elif func is functional.multi_head_attention_forward:
            bound = inspect.signature(func).bind(*args, **named).arguments
            self.counts.extend(_multi_head(bound))
        return func(*args, **named)


def _three(args: Sequence[Any], named: Mapping[str, Any]) -> list[Tensor]:
    """Return query, key and value of a call."""
    return [*args[:3], *(named[name] for name in ("query", "key", "value")[len(args) :])]


def _products(query: Tensor, key: Tensor, value: Tensor) -> Macs:
    """Count Q·Kᵀ and its product with V, heads and batches first; no weight takes part."""
    count = query[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    return Macs(count, count)


def _multi_head(call: Mapping[str, Any]) -> list[Macs]:
    """Count a call of `multi_head_attention_forward`: four projections, and two products."""
    query, key, value = (call[name] for name in ("query", "key", "value"))
    if call.get("use_separate_proj_weight"):
        weights = [call[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = list(call["in_proj_weight"].chunk(3))
    counts = [
        _projection(weight, tensor)
        for weight, tensor in zip(weights, (query, key, value), strict=True)
    ]
    counts.append(_projection(call["out_proj_weight"], query))
    more = (call["bias_k"] is not None) + bool(call["add_zero_attn"])
    products = 2 * query.numel() * (len(key) + more)  # for every query, L·N of them: S·E twice
    return [*counts, Macs(products, products)]


def _projection(weight: Tensor, inputs: Tensor) -> Macs:
    uses = inputs.numel() // inputs.shape[-1]
    return Macs(uses * weight.numel(), uses * int(weight.count_nonzero()))
