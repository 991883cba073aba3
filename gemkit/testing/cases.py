"""The cases that contracts are tried on: layers and networks in every state a part may meet.

A case holds a few words and numbers, from which it builds its tensors. So it prints in one line,
and hypothesis can shrink it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from gemkit.core.probe import Batch, Probe, Wanted
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import Tensors, generator, parameters_of
from gemkit.testing.tiny import NETWORKS, SHAPE, tiny_data
from gemkit.training.calibration import draw

_CPU = torch.device("cpu")


class Case:
    """A case that prints as those of its fields that are not at their default."""

    def __str__(self) -> str:
        default = type(self)()
        shown = [
            f"{field.name}={str(getattr(self, field.name)).removeprefix('torch.')}"
            for field in fields(self)  # type: ignore[arg-type] # every case is a dataclass
            if getattr(self, field.name) != getattr(default, field.name)
        ]
        return ", ".join(shown) or "the simplest one"


@dataclass(frozen=True)
class Layers(Case):
    """A few named tensors, without a network.

    `style` is the kind of values: `drawn` (uniform in [0, 1)), `ties` (only a few values, including
    0 and 1), `equal` (all 0.5), `nan`, `inf` and `minus inf` (one such value in every layer).
    `alive` is the fraction of alive entries.
    """

    shapes: tuple[tuple[int, ...], ...] = ((4, 3),)
    style: str = "drawn"
    alive: float = 1.0
    dtype: torch.dtype = torch.float32
    seed: int = 0
    device: torch.device = _CPU

    def values(self) -> Tensors:
        """Return the values, on the device and in the dtype of the case."""
        rng = generator(self.seed, "values")
        made = {f"layer{at}": self._layer(shape, rng) for at, shape in enumerate(self.shapes)}
        return {name: value.to(self.device, self.dtype) for name, value in made.items()}

    def _layer(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        drawn = torch.rand(shape, generator=rng)
        if self.style == "equal":
            return torch.full(shape, 0.5)
        if self.style == "ties":
            return (drawn * 5).floor() / 4
        if self.style in {"nan", "inf", "minus inf"}:
            drawn.view(-1)[:1] = float(self.style.replace("minus ", "-"))
        return drawn

    def masks(self) -> Tensors:
        """Return the masks of alive entries."""
        rng = generator(self.seed, "alive")
        return {
            f"layer{at}": (torch.rand(shape, generator=rng) < self.alive).to(self.device)
            for at, shape in enumerate(self.shapes)
        }


@dataclass(frozen=True)
class Network(Case):
    """A network to measure, one of `gemkit.testing.tiny.NETWORKS`.

    `weights` are `drawn`, all `equal`, or all `zero`; `pruned` is `nothing`, `half` or the
    `first layer`. The first parameter has a gradient, the last one is frozen, and the first
    submodule is in another mode than the rest.
    """

    name: str = "one_layer"
    weights: str = "drawn"
    pruned: str = "nothing"
    training: bool = False
    dtype: torch.dtype = torch.float32
    seed: int = 0
    device: torch.device = _CPU

    def model(self) -> nn.Module:
        """Build the network; pruned weights are zero, as in a search."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = NETWORKS[self.name]()
        model = model.to(self.device, self.dtype)
        with torch.no_grad():
            for name, parameter in parameters_of(model, prunable_names(model, frozen=True)).items():
                if self.weights != "drawn":
                    parameter.fill_(0.25 if self.weights == "equal" else 0.0)
                parameter.mul_(self.alive(model)[name])
        first, *_, last = model.parameters()
        first.grad = torch.ones_like(first)
        last.requires_grad_(False)
        model.train(self.training)
        next(model.children()).train(not self.training)
        return model

    def alive(self, model: nn.Module) -> Tensors:
        """Return the masks of alive entries."""
        rng, names = generator(self.seed, "alive"), prunable_names(model, frozen=True)
        shares = {"nothing": 1.0, "half": 0.5, "first layer": 1.0}
        masks = {
            name: torch.rand(parameter.shape, generator=rng) < shares[self.pruned]
            for name, parameter in parameters_of(model, names).items()
        }
        if self.pruned == "first layer":
            masks[names[0]].zero_()
        return {name: mask.to(self.device) for name, mask in masks.items()}

    def batches(self, wanted: Wanted) -> list[Batch]:
        """Draw the batches that a score asks for, as a search does."""
        source = tiny_data(shape=SHAPE, samples=48, seed=self.seed).train
        return draw(source.to(self.device), wanted, size=12, seed=0, turn=0)

    def probe(self, model: nn.Module, batches: list[Batch], scores: Tensors) -> Probe:
        """Return the probe for measuring the network, as in a search."""
        parameters = parameters_of(model, prunable_names(model, frozen=True))
        return Probe(
            model=model,
            weights={name: parameter.detach().clone() for name, parameter in parameters.items()},
            alive=self.alive(model),
            batches=batches,
            rng=generator(self.seed, "importance"),
            scores=scores,
            shape=SHAPE,
            density=0.25,
        )
