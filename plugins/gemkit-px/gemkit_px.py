"""Path exclusion (PX) for gemkit: which paths carry the data, and how much the weights let pass.

Iurada et al., "Finding Lottery Tickets in Vision Models via Data-driven Spectral Foresight Pruning"
(CVPR 2024, arXiv 2406.01820).

    z1 = f(x²; θ = 1), every ReLU replaced by its 0/1 pattern in the network at x
    z2 = f(1; θ²), every ReLU replaced by the identity
    R  = Σ z1 ⊙ z2                  over samples and outputs: a bound on the trace of the NTK
    s  = θ² ⊙ |∂R/∂(θ²)|            keep the largest, over the whole network, in 100 rounds

In round k the density falls to target^(k/100), and pruned weights count as zero in both networks.
R is a sum of products of squares over paths from input to output, so no score is negative. Without
biases the scores of every layer of a chain sum to R. As in the authors' program, biases are zero in
z1 and squared in z2, poolings work as they are, and batch norm is the identity in z1. In z2 batch
norm squares its scale and shift; its running mean counts as a bias, so that nothing is subtracted
(at initialization it is zero). Versions of their program differ in batch norm, and one squares the
derivative. All computing is in double precision.
"""

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gemkit import MeasuredScores, Probe, Scores, Tensors, Wanted, hookimpl, prunable_names
from gemkit.core.errors import ImportanceError
from gemkit.core.probe import gradients


class PathExclusion(MeasuredScores):
    """How much of R, a sum over the paths that data take, passes a weight: θ² · ∂R/∂θ² (PX)."""

    name = "px"

    batches: int = Field(
        default=2, ge=1, le=100_000, description="training batches to look at in every round"
    )

    def batches_wanted(self) -> Wanted:
        """Ask for ordinary batches."""
        return Wanted(self.batches)

    def importance(self, probe: Probe) -> Tensors:
        """Return θ² · ∂R/∂(θ²) in double precision."""
        if not probe.batches:
            raise ImportanceError("PX follows data through the network: give it at least one batch")
        device = next(iter(probe.weights.values())).device
        device = torch.device("cpu") if device.type == "mps" else device  # it has no doubles
        state = {
            name: own.detach().to(device, torch.float64)
            for name, own in {**probe.rest(), **probe.weights}.items()
            if own.is_floating_point()
        }
        squares = {name: own.square() for name, own in state.items()}
        leaves = {name: squares[name].requires_grad_() for name in probe.weights}
        ones = state[next(iter(leaves))].new_ones(1, *probe.batches[0][0].shape[1:])
        ones.requires_grad_()
        with _Paths(_pass, _squared_norm):
            z2 = probe.forward(squares, ones)
        z1 = _active_paths(probe, state)
        slopes = gradients((z1 * z2).sum(), leaves)
        score = {name: leaf.detach() * slopes[name] for name, leaf in leaves.items()}
        if not torch.stack([own.isfinite().all() for own in score.values()]).all():
            raise ImportanceError(
                "the number of paths through this network overflows even double precision; use "
                "other scores, such as 'synflow'"
            )
        return score


@torch.no_grad()
def _active_paths(probe: Probe, state: Tensors) -> Tensor:
    """Return z1, summed over all samples."""
    single = {name: torch.zeros_like(own) for name, own in state.items()}
    single |= {n: torch.ones_like(state[n]) for n in prunable_names(probe.model, frozen=True)}
    single |= {name: own.to(state[name]) for name, own in probe.alive.items()}
    patterns: list[Tensor] = []

    def record(x: Tensor) -> Tensor:
        patterns.append(x > 0)
        return x.clamp(min=0)

    def replay(x: Tensor) -> Tensor:
        return x * patterns.pop(0)

    found = []
    for images, _ in probe.batches:
        with _Paths(record, F.batch_norm):
            probe.forward(state, images)
        with _Paths(replay, _no_norm):
            found.append(probe.forward(single, images.square()).sum(0, keepdim=True))
    return torch.stack(found).sum(0)


class _Paths(TorchFunctionMode):
    """While active, ReLUs and batch norms have stand-ins, and what has no paths is refused."""

    def __init__(self, gate: Callable[[Tensor], Tensor], norm: Callable[..., Tensor]) -> None:
        super().__init__()
        self.gate, self.norm = gate, norm

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Call the stand-in of a function, or the function itself if it is known."""
        kwargs = kwargs or {}
        own_name = getattr(func, "__name__", "")
        if own_name in ("relu", "relu_"):
            x = args[0] if args else kwargs["input"]
            in_place = own_name == "relu_" or kwargs.get("inplace", args[1:] == (True,))
            gated = self.gate(x)
            return x.copy_(gated) if in_place and gated is not x else gated
        if func is F.batch_norm:
            return self.norm(**signature(func).bind(*args, **kwargs).arguments)
        result = func(*args, **kwargs)
        name = own_name.strip("_")
        flows = [_flows(value) for value in (*args, *kwargs.values())]
        if any(flows) and _is_signal(result) and not (name in _LINEAR or _adds(name, flows)):
            raise _refusal("a sum with a constant" if name in _SUMS else f"'{name}'")
        return result


def _flows(value: object) -> bool:
    """Whether a value, or one in a list, depends on the weights or the input."""
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, tuple | list) and any(map(_flows, value))


def _is_signal(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point()
    return isinstance(value, tuple | list) and any(map(_is_signal, value))


def _adds(name: str, flows: list[bool]) -> bool:
    """Whether a function adds two signals; a constant would be a path from nowhere."""
    return name in _SUMS and all(flows[:2])


def _refusal(what: str) -> ImportanceError:
    return ImportanceError(
        "PX follows paths through convolutions, linear layers, batch norms, ReLUs, poolings and "
        f"sums, but this network takes {what} of what flows through it; use other scores, such as "
        "'synflow' or 'snip'"
    )


def _pass(x: Tensor) -> Tensor:
    return x


def _no_norm(input: Tensor, *_: object, **__: object) -> Tensor:
    return input


def _squared_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize by statistics that are squares already, as scale and shift are."""
    if running_mean is None or running_var is None:
        raise _refusal("a batch norm without running statistics")
    scale = 1 / (running_var.sqrt() + eps) * (1 if weight is None else weight)
    shift = running_mean * scale + (0 if bias is None else bias)
    shape = (-1, *[1] * (input.ndim - 2))
    return input * scale.view(shape) + shift.view(shape)


_SUMS = ("add", "iadd")
_LINEAR = {f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)} | {"linear"}
_LINEAR |= {f"{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)}
_LINEAR |= {f"adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)}
_LINEAR |= {"flatten", "view", "reshape", "squeeze", "unsqueeze", "permute", "transpose"}
_LINEAR |= {
    "cat",
    "chunk",
    "split",
    "getitem",
    "pad",
    "mean",
    "sum",
    "contiguous",
    "clone",
    "to",
    "detach",
}
_LINEAR |= {"dropout", "dropout1d", "dropout2d", "dropout3d", "new_zeros", "zeros_like"}


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the score."""
    return [PathExclusion]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register PX."""
    return {
        "px": {
            "help": "PX: the paths that data take, in 100 rounds (Iurada et al. 2024)",
            "scores": "px",
            "schedule": {"name": "exponential", "rounds": 100},
        }
    }
