"""Wanda for gemkit: weights times the norm of their inputs, compared within every output row.

Sun et al., "A Simple and Effective Pruning Approach for Large Language Models" (ICLR 2024,
arXiv 2306.11695).

    s_ij = |W_ij| · ‖X_j‖₂        keep the largest of every row i

‖X_j‖₂ is the norm of input j over all samples, and over all positions where a layer is applied to
several. For convolutions X is the unfolded input: j is an input channel at one place of the kernel.
The pruner gives every layer the same density (allocation `uniform`) and every row the same share
(structure `rows`); structure `nm` compares within blocks of a row instead.

The sum of squares behind a norm needs no unfolding. It is the derivative of Σ layer(X²) by W_ij,
for any stride, padding, dilation or number of groups.

All norms are those of the network before the freeze, in evaluation mode. The authors' program works
block by block, and later blocks see the outputs of pruned ones.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gemkit import MeasuredScores, Probe, Scores, Tensors, Wanted, hookimpl
from gemkit.core.errors import ImportanceError


class Wanda(MeasuredScores):
    """Magnitude of a weight times the norm of its input (Wanda)."""

    name = "wanda"
    needs_signal = False

    batches: int = Field(
        default=4, ge=1, le=100_000, description="training batches that the norms are taken over"
    )

    def batches_wanted(self) -> Wanted:
        """Ask for ordinary batches."""
        return Wanted(self.batches)

    def importance(self, probe: Probe) -> Tensors:
        """Return |W| · ‖X‖."""
        if not probe.batches:
            raise ImportanceError("Wanda measures inputs of layers: give it at least one batch")
        weights = {name: own.detach() for name, own in probe.leaves().items()}
        with torch.no_grad(), _Inputs(weights) as inputs:
            for images, _ in probe.batches:
                probe.forward(weights, images)
        return {name: own.abs() * inputs.squares[name].sqrt() for name, own in weights.items()}


class _Inputs(TorchFunctionMode):
    """While active, sums the squares of what the weights are multiplied with."""

    def __init__(self, weights: Tensors) -> None:
        super().__init__()
        self.names = {id(own): name for name, own in weights.items()}
        self.squares = {name: torch.zeros_like(own) for name, own in weights.items()}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Call a function, and see whether one of the weights takes part."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        used = [self.names[id(own)] for own in (*args, *kwargs.values()) if id(own) in self.names]
        name = getattr(func, "__name__", "")
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        if name in _PRODUCTS and used == [self.names.get(id(weight))]:
            self.squares[used[0]] += _squares(func, args, kwargs)
        elif used and name != "to" and _is_signal(result):
            raise ImportanceError(
                "Wanda sees the inputs of linear layers and convolutions, but this network uses "
                f"'{used[0]}' in '{name}'; leave that weight out with prunable.skip, or use other "
                "scores, such as 'magnitude'"
            )
        return result


def _is_signal(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point()
    return isinstance(value, tuple | list) and any(map(_is_signal, value))


@torch.enable_grad()
def _squares(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Sum the squares of the inputs that each weight of a layer meets."""
    given = dict(zip(_OPERANDS, args, strict=False)) | kwargs
    options = {name: value for name, value in kwargs.items() if name not in _OPERANDS}
    leaf = given["weight"].detach().requires_grad_()
    total = func(given["input"].square(), leaf, None, *args[len(_OPERANDS) :], **options).sum()
    [slope] = torch.autograd.grad(total, [leaf])
    return slope


_OPERANDS = ("input", "weight", "bias")
_PRODUCTS = {f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)} | {"linear"}


@hookimpl
def gemkit_scores() -> list[type[Scores]]:
    """Register the score."""
    return [Wanda]


@hookimpl
def gemkit_pruners() -> dict[str, dict[str, Any]]:
    """Register Wanda: the same density in every layer, the same share in every row."""
    return {
        "wanda": {
            "help": "Wanda: weights times the norms of their inputs, row by row (Sun et al. 2024)",
            "scores": "wanda",
            "allocation": "uniform",
            "structure": "rows",
        }
    }
