"""Whether a layer computes with its weights as they stand.

A mask promises that a pruned weight carries no signal. The promise holds where a layer hands its
weight to the convolution or product as it is. It fails where the weight is computed anew in every
forward pass: weight standardization, for one, subtracts a mean, which makes zeros non-zero.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHTED = (*CONVOLUTIONS, *TRANSPOSED, nn.Linear, nn.Bilinear)
_PRODUCTS = {"linear", *(f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3))}


def weights_of(layer: nn.Module) -> tuple[str, ...]:
    """Name what a layer has to prune, as far as its kind goes: nothing, or its weights."""
    if isinstance(layer, nn.MultiheadAttention):
        return ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    return ("weight",) if isinstance(layer, WEIGHTED) else ()


def recomputes(layer: nn.Module, name: str) -> bool:
    """Tell whether zeros in this weight would not be zeros in what the layer computes with.

    That is certain where the weight is no parameter of the layer itself, but derived from others:
    by a parametrization, weight norm, or torch's own pruning. A layer with a `forward` of its own
    is watched at work with every other weight set to zero. One that cannot be tried so easily is
    taken to be harmless.
    """
    if name not in layer._parameters:
        return True
    weight = layer._parameters[name]
    if weight is None or weight.is_meta or _is_plain(layer):
        return False
    place = torch.arange(weight.numel(), device=weight.device)
    half = (place % 2 * (1 + place / len(place))).reshape(weight.shape)
    state = {own: buffer.clone() for own, buffer in layer.named_buffers()}
    kernels = _Kernels()
    try:
        with torch.no_grad(), kernels:
            functional_call(layer, {**state, name: half.to(weight)}, (_smallest_input(layer),))
    except Exception:  # somebody else's forward may want anything
        return False
    full = half.count_nonzero()
    return any(one.numel() == half.numel() and one.count_nonzero() > full for one in kernels.seen)


def _is_plain(layer: nn.Module) -> bool:
    """Tell whether a layer runs PyTorch's own code, which uses the weight as it is."""
    own = next((kind for kind in WEIGHTED if isinstance(layer, kind)), None)
    if own is None or own is nn.Bilinear:
        return True
    inner = ("forward", "_conv_forward")
    return all(
        getattr(getattr(layer, method, None), "__func__", None) is getattr(own, method, None)
        for method in inner
    )


def _smallest_input(layer: nn.Module) -> Tensor:
    """Make the smallest input of ones that a layer takes."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    shape: tuple[int, ...]
    if isinstance(layer, CONVOLUTIONS):
        spans = zip(layer.kernel_size, layer.dilation, strict=True)
        shape = (layer.in_channels, *(reach * (size - 1) + 1 for size, reach in spans))
    elif isinstance(layer, TRANSPOSED):
        shape = (layer.in_channels, *(1 for _ in layer.kernel_size))
    else:
        assert isinstance(layer, nn.Linear)
        shape = (layer.in_features,)
    return weight.new_ones((1, *shape))


class _Kernels(TorchFunctionMode):
    """Notes what convolutions and products are given as their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - torch's own signature
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _PRODUCTS:
            self.seen.append(kwargs["weight"] if "weight" in kwargs else args[1])
        return func(*args, **kwargs)
