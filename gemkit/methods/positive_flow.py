"""A network seen as pipes: what flows through it is positive and grows in proportion to each layer.

SynFlow's laws hold when the output R is linear in the weights of every layer. While `PositiveFlow`
is active, functions that would break this have stand-ins that agree with them in what they connect:

    ReLU6, Hardswish, SiLU, GELU, tanh, …   pass positive flow on as it is, as ReLU does
    sigmoid, hard sigmoid                   an open gate: value 1, changing as its argument does,
                                            relative to its size
    softmax                                 even attention 1/N, each entry such a gate
    a ⊙ b and a @ b of two flows            each factor answers for half of the product
    a / b                                   b is a constant
    layer, group, instance and RMS norm     scale and shift only
    batch norm                              as in evaluation, but never below zero before the shift
                                            (of degree one while the running means are zero)

So these functions are positive and homogeneous of degree one, and by Euler's theorem the scores
w · ∂R/∂w of any cut through a network without biases sum to R, gates and attention included. A norm
whose scale is zero everywhere, the usual start of a residual branch, counts as having scale one.
"""

from collections.abc import Callable, Iterable
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gemkit.core.errors import ImportanceError


class PositiveFlow(TorchFunctionMode):
    """While active, functions that would break the law have stand-ins, or are refused by name."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Call the stand-in of a function, where it has one."""
        kwargs = kwargs or {}
        own_name = getattr(func, "__name__", "")
        name = own_name.strip("_")
        if name in _REFUSED and any(_flows(value) for value in args):
            raise ImportanceError(
                f"SynFlow needs a network whose output grows in proportion to every layer, but "
                f"this one takes '{name}' of what flows through it; use other scores, such as "
                "'snip', 'grasp' or 'magnitude'"
            )
        if func in _NORMS:
            given = signature(func).bind(*args, **kwargs).arguments
            return _NORMS[func](given["input"], given.get("weight"), given.get("bias"))
        if name not in _STAND_INS:
            return func(*args, **kwargs)
        if own_name.endswith("_") and not own_name.endswith("__"):  # works in place
            copies = [value.clone() if _flows(value) else value for value in args]
            return args[0].copy_(_STAND_INS[name](*copies, **kwargs))
        return _STAND_INS[name](*args, **kwargs)


def _flows(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


# --- products ------------------------------------------------------------------------------------


def _product(
    multiply: Callable[..., Tensor],
    *args: Any,  # noqa: ANN401 - tensors and numbers
    **options: Any,  # noqa: ANN401
) -> Tensor:
    """Multiply flows so that every factor gets an equal part of the derivative.

    All factors together then pass on just the flow of the product.
    """
    places = [place for place, value in enumerate(args) if _flows(value)]
    if len(places) < 2:
        return multiply(*args, **options)
    terms = []
    for chosen in places:
        fixed = [value.detach() if _flows(value) else value for value in args]
        fixed[chosen] = args[chosen]
        terms.append(multiply(*fixed, **options))
    return torch.stack(terms).mean(0)


def _quotient(x: Tensor, by: Any, **options: Any) -> Tensor:  # noqa: ANN401 - tensor or number
    return torch.div(x, by.detach() if isinstance(by, Tensor) else by, **options)


def _chosen(choose: Callable[..., Tensor], one: Tensor, other: Tensor) -> Tensor:
    """Choose between two flows; a constant is a bound, and flow has none."""
    if _flows(one) and _flows(other):
        return choose(one, other)
    return _passed(one if _flows(one) else other)


# --- activations and gates -----------------------------------------------------------------------


def _passed(input: Tensor, *_: object, **__: object) -> Tensor:
    return input.clamp(min=0)  # unlike relu, lets the caller overwrite the result


def _gate(input: Tensor, *_: object, **__: object) -> Tensor:
    """Return ones that change as their argument does, relative to its size."""
    x = input.clone()  # the caller may overwrite its own
    positive = (x > 0) & (x < torch.inf)
    return torch.where(positive, x / torch.where(positive, x, 1).detach(), 1)


def _gated(input: Tensor, dim: int = -1) -> Tensor:
    signal, gate = input.chunk(2, dim)
    return _product(torch.mul, signal, _gate(gate))


def _softmax(input: Tensor, dim: int | None = None, *_: object, **__: object) -> Tensor:
    return _gate(input) / input.shape[-1 if dim is None else dim]


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
    """Attend evenly to everything, whatever the mask."""
    agreement = _product(torch.matmul, query, key.transpose(-2, -1))
    return _product(torch.matmul, _softmax(agreement), value)


def _multi_head(*args: Any, **options: Any) -> tuple[Tensor, None]:  # noqa: ANN401 - many kinds
    """Do what `nn.MultiheadAttention` does, on inputs of (position, …, width)."""
    given = signature(F.multi_head_attention_forward).bind(*args, **options).arguments
    heads, bias = given["num_heads"], given["in_proj_bias"]
    if given["in_proj_weight"] is None:
        weights = [given[f"{role}_proj_weight"] for role in "qkv"]
    else:
        weights = given["in_proj_weight"].chunk(3)
    biases = [None] * 3 if bias is None else bias.chunk(3)
    inputs = [given[role] for role in ("query", "key", "value")]
    split = []
    for x, weight, shift in zip(inputs, weights, biases, strict=True):
        projected = F.linear(x, weight, shift)
        split.append(projected.reshape(*x.shape[:-1], heads, -1).movedim(0, -2))
    joined = _attention(*split).movedim(-2, 0).flatten(-2)
    return F.linear(joined, given["out_proj_weight"], given["out_proj_bias"]), None


# --- norms ---------------------------------------------------------------------------------------


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift, by tensors that broadcast; a scale that is zero everywhere counts as one."""
    if weight is not None:
        x = x * torch.where(weight.any(), weight, 1)  # decided where the weight lies
    return x if bias is None else x + bias


def _by_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = (-1, *[1] * (x.ndim - 2))
    return _scaled(
        x,
        None if weight is None else weight.reshape(shape),
        None if bias is None else bias.reshape(shape),
    )


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if running_mean is not None and running_var is not None:
        input = F.relu(_by_channel(input, None, -running_mean))
        input = _by_channel(input, (running_var + eps).rsqrt(), None)
    return _by_channel(input, weight, bias)


# --- which stands in for which, by the names that torch gives its functions ----------------------

_ACTIVATIONS = {
    "relu6",
    "clamp_min",
    "clamp_max",
    "hardtanh",
    "clamp",
    "clip",
    "hardswish",
    "silu",
    "gelu",
    "mish",
    "elu",
}
_ACTIVATIONS |= {"selu", "celu", "softplus", "tanh", "softsign", "log_softmax"}
_STAND_INS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_ACTIVATIONS, _passed),
    "local_response_norm": _passed,
    "batch_norm": _batch_norm,
    "sigmoid": _gate,
    "hardsigmoid": _gate,
    "glu": _gated,
    "softmax": _softmax,
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head,
    "mul": partial(_product, torch.mul),
    "multiply": partial(_product, torch.mul),
    "matmul": partial(_product, torch.matmul),
    "bmm": partial(_product, torch.bmm),
    "mm": partial(_product, torch.mm),
    "minimum": partial(_chosen, torch.minimum),
    "maximum": partial(_chosen, torch.maximum),
    "einsum": partial(_product, torch.einsum),
    "div": _quotient,
    "divide": _quotient,
    "true_divide": _quotient,
}
_NORMS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.layer_norm: _scaled,
    F.rms_norm: _scaled,
    F.group_norm: _by_channel,
    F.instance_norm: _by_channel,
}
_REFUSED = {"exp", "expm1", "log", "log1p", "log2", "log10", "logsumexp", "pow", "rpow", "square"}
_REFUSED |= {"sqrt", "rsqrt", "reciprocal", "rtruediv", "rdiv", "sin", "cos", "erf", "prod"}
_REFUSED |= {"atan", "atan2", "arctan", "sinh", "cosh", "asinh", "exp2", "erfc", "logaddexp"}
_REFUSED |= {"logsigmoid", "log_sigmoid", "tanhshrink", "softshrink", "hardshrink", "softmin"}
_REFUSED |= {"dot", "vdot", "outer", "baddbmm", "addbmm", "addmm", "addmv", "addcmul", "addcdiv"}
_REFUSED |= {"cosine_similarity", "cdist", "pairwise_distance", "floor", "round", "fmod"}
_REFUSED |= {"cumprod", "var", "std", "var_mean", "std_mean", "norm", "vector_norm", "normalize"}
