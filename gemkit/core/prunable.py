"""Find the weights of a model that can be pruned.

A pruned weight carries no signal only if the layer passes it unchanged to the convolution or
product. Layers that recompute it in every forward pass break this: weight standardization, for
one, subtracts a mean, which makes zeros non-zero. Such layers are refused.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from gemkit.core.errors import GemkitError, some
from gemkit.core.memory import shortage

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHTED = (*CONVOLUTIONS, *TRANSPOSED, nn.Linear, nn.Bilinear)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
Kind = Literal["conv", "linear", "attention", "embedding", "recurrent"]
KINDS: tuple[Kind, ...] = ("conv", "linear", "attention")
"""The kinds of layers that are pruned by default."""
ON_REQUEST: tuple[Kind, ...] = ("embedding", "recurrent")
"""The kinds of layers that are pruned only if a recipe names them."""
_PRODUCTS = {"linear", *(f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3))}


def weights_of(layer: nn.Module) -> tuple[str, ...]:
    """Return the names of the prunable weights that a layer of this type can have."""
    if isinstance(layer, nn.MultiheadAttention):
        return ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    if isinstance(layer, nn.RNNBase):
        return tuple(name for name in layer._flat_weights_names if name.startswith("weight"))
    if isinstance(layer, nn.RNNCellBase):
        return ("weight_ih", "weight_hh")
    if isinstance(layer, EMBEDDINGS):
        return ("weight",)
    return ("weight",) if isinstance(layer, WEIGHTED) else ()


def kind_of(layer: nn.Module) -> Kind:
    """Return the kind of a prunable layer."""
    if isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED)):
        return "conv"
    if isinstance(layer, EMBEDDINGS):
        return "embedding"
    if isinstance(layer, RECURRENT):
        return "recurrent"
    return "attention" if isinstance(layer, nn.MultiheadAttention) else "linear"


def recomputes(layer: nn.Module, name: str) -> bool:
    """Return whether the layer may turn zeros in this weight into other numbers.

    It does if the weight is not its own parameter but derived from others: by a parametrization,
    weight norm, or `torch.nn.utils.prune`. A layer with a custom `forward` is tried with every
    other weight set to zero. If it cannot be tried on a simple input, assume that it does not.
    """
    if name not in layer._parameters:
        return True
    weight = layer._parameters[name]
    if weight is None or weight.is_meta or _is_plain(layer):
        return False
    position = torch.arange(weight.numel(), device=weight.device)
    half = (position % 2 * (1 + position / len(position))).reshape(weight.shape)
    state = {own: buffer.clone() for own, buffer in layer.named_buffers()}
    used = _UsedWeights()
    try:
        with torch.no_grad(), used:
            functional_call(layer, {**state, name: half.to(weight)}, (_smallest_input(layer),))
    except Exception as error:  # a custom forward may need any kind of input
        if shortage(error):
            raise
        return False
    full = half.count_nonzero()
    return any(one.numel() == half.numel() and one.count_nonzero() > full for one in used.weights)


def _is_plain(layer: nn.Module) -> bool:
    """Return whether a layer runs PyTorch's own forward, which uses the weight unchanged."""
    own = next((kind for kind in WEIGHTED if isinstance(layer, kind)), None)
    if own is None or own is nn.Bilinear:
        return True
    inner = ("forward", "_conv_forward")
    return all(
        getattr(getattr(layer, method, None), "__func__", None) is getattr(own, method, None)
        for method in inner
    )


def _smallest_input(layer: nn.Module) -> Tensor:
    """Return the smallest input that a layer takes, filled with ones."""
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


class _UsedWeights(TorchFunctionMode):
    """Records the weights that convolutions and matrix products are called with."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - torch's own signature
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _PRODUCTS:
            self.weights.append(kwargs["weight"] if "weight" in kwargs else args[1])
        return func(*args, **kwargs)


def prunable_names(
    model: nn.Module,
    *,
    include: Sequence[str] = ("*",),
    skip: Sequence[str] = (),
    kinds: Sequence[str] = KINDS,
    frozen: bool = False,
) -> list[str]:
    """Return the names of the prunable weights, in module order.

    These are the weights of convolutions (grouped, depthwise and transposed ones too), linear
    layers and the projections of `nn.MultiheadAttention`; not biases or norms, and embeddings and
    recurrent layers only if `kinds` names them. A weight shared by several modules is named once,
    and patterns see all its names. A layer that would turn the zeros of a mask into other numbers
    is an error (see `recomputes`).

    Args:
        model: any `nn.Module`.
        include: shell patterns on the parameter name, such as `"layer4.*"`.
        skip: patterns of names to leave out.
        kinds: kinds of layers to prune: "conv", "linear", "attention", "embedding", "recurrent".
        frozen: include frozen weights (`requires_grad=False`).
    """
    found: dict[int, str] = {}
    derived: list[str] = []
    for name, layer, own in candidates(model):
        if kind_of(layer) not in kinds or (not frozen and _is_frozen(layer, own)):
            continue
        if recomputes(layer, own):
            derived.append(name)
        else:
            found.setdefault(id(layer._parameters[own]), name)
    aliases = aliases_in(model)
    names = _matching(found.values(), aliases, include, skip)
    if recomputed := _matching(derived, aliases, include, skip):
        raise refuse_recomputed(model, recomputed)
    if not names and (left := _matching(frozen_names(model), aliases, include, skip)):
        raise GemkitError(
            f"every prunable weight of {type(model).__name__} is frozen (requires_grad=False): "
            f"{some(left)}; unfreeze them with requires_grad_(True), or prune frozen weights with "
            "prune_frozen=True (in prunable_names, frozen=True)"
        )
    if not names:
        raise GemkitError(
            f"{type(model).__name__} has no prunable weights: gemkit prunes the weights of "
            f"layers of kind {', '.join(kinds)}, here matching {list(include)} and not {list(skip)}"
            + _on_request(model, kinds)
        )
    return names


def refuse_recomputed(model: nn.Module, names: Sequence[str]) -> GemkitError:
    """Return the error for weights that are computed in every forward pass, with the way out."""
    places = [name.rpartition(".") for name in names]
    layers = [(own, model.get_submodule(prefix)) for prefix, _, own in places]
    ways = {
        "remove pruning first, with torch.nn.utils.prune.remove, or read its masks with "
        "Ticket.from_pruned": "_mask",
        "remove weight norm first, with torch.nn.utils.remove_weight_norm": "_g",
        "remove spectral norm first, with torch.nn.utils.remove_spectral_norm": "_u",
    }
    general = (
        "choose a network without weight standardization, or remove parametrizations first, with "
        "torch.nn.utils.parametrize.remove_parametrizations"
    )
    known = (
        way
        for way, suffix in ways.items()
        if all(hasattr(layer, own + suffix) for own, layer in layers)
    )
    way_out = next(known, general)
    return GemkitError(
        f"{type(model).__name__} recomputes {some(names)} in every forward pass, so a weight that "
        f"a mask sets to zero would not be zero in the network; {way_out}"
    )


def _on_request(model: nn.Module, kinds: Sequence[str]) -> str:
    """Say which kinds of layers of a model would be pruned if they were named."""
    there = {kind_of(layer) for _, layer, _ in candidates(model)}
    other = [kind for kind in ON_REQUEST if kind in there and kind not in kinds]
    return (
        f"; to prune layers of kind {' and '.join(other)}, name them in prunable.kinds"
        if other
        else ""
    )


def frozen_names(model: nn.Module) -> list[str]:
    """Return the names that `prunable_names` leaves out because the weights are frozen."""
    return weight_names(model, frozen=True)


def weight_names(model: nn.Module, *, frozen: bool, kinds: Sequence[str] = KINDS) -> list[str]:
    """Return the names of prunable weights that are frozen, or of those that are not.

    Weights that a layer computes in its forward pass are included. Pass other `kinds` for layers
    that are pruned on request.
    """
    found: dict[int, str] = {}
    for name, layer, own in candidates(model):
        if kind_of(layer) in kinds and _is_frozen(layer, own) == frozen:
            found.setdefault(id(layer._parameters.get(own, layer)), name)
    return list(found.values())


def output_name(model: nn.Module) -> str | None:
    """Return the name of the last prunable weight of a network, frozen or not.

    A shared weight has the name of its first use.
    """
    found: dict[int, str] = {}
    last = None
    for name, layer, own in candidates(model):
        if kind_of(layer) in KINDS:
            last = found.setdefault(id(layer._parameters.get(own, layer)), name)
    return last


def candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield candidate weights: full name, layer, and name within the layer."""
    for prefix, layer in model.named_modules():
        for own in weights_of(layer):
            if layer._parameters.get(own, layer) is not None:
                yield f"{prefix}.{own}" if prefix else own, layer, own


def _is_frozen(layer: nn.Module, own: str) -> bool:
    """Return whether a weight is frozen; a derived one is if all parameters of its layer are."""
    weight = layer._parameters.get(own)
    parameters = list(layer.parameters()) if weight is None else [weight]
    return not any(parameter.requires_grad for parameter in parameters)


def aliases_in(model: nn.Module) -> dict[str, list[str]]:
    """Return all names of every parameter, under each of them; a tied one has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name: own for own in names.values() for name in own}


def matches(name: str, patterns: Iterable[str], aliases: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a weight has a name that matches one of these patterns."""
    names = aliases.get(name, [name])
    return any(fnmatch.fnmatchcase(own, pattern) for pattern in patterns for own in names)


def _matching(
    names: Iterable[str],
    aliases: Mapping[str, Sequence[str]],
    include: Sequence[str],
    skip: Sequence[str],
) -> list[str]:
    """List the names of weights that are included and not skipped."""
    chosen = [name for name in names if matches(name, include, aliases)]
    return [name for name in chosen if not matches(name, skip, aliases)]
