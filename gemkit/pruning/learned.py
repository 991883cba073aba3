"""Learned scores of a network, and the mask or gates that they make."""

from collections.abc import Container, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from gemkit.core.selection import Shares, never_traced
from gemkit.core.state import StateDict, checked_rng_state, checked_tensors
from gemkit.core.tensors import Tensors, aligned
from gemkit.parts.now import Now
from gemkit.parts.recipe import Recipe
from gemkit.parts.rounding import Rounding
from gemkit.parts.scores import LearnedScores


class LearnedMask:
    """The scores of all layers, and the parts that turn them into a mask.

    `gemkit.pruning.update` trains the scores and writes the masked weights. Nothing here is part
    of the autograd graph. All tensors of a layer have the strides of its weight.
    """

    def __init__(
        self,
        weights: Tensors,
        recipe: Recipe,
        rng: torch.Generator,
        now: Now,
        frozen: Container[str] = (),
    ) -> None:
        assert isinstance(recipe.scores, LearnedScores)
        self.scoring = recipe.scores
        self.rounding = recipe.rounding
        self.regularizer = recipe.regularizer
        self.structure = recipe.structure
        self.rng = rng
        drawn = self.scoring.init({name: weight.clone() for name, weight in weights.items()}, rng)
        self.parameters = {
            name: nn.Parameter(torch.empty_like(weight).copy_(drawn.pop(name)))
            for name, weight in weights.items()
        }
        """The scores as parameters, for the optimizer."""
        self.scores = {name: score.detach() for name, score in self.parameters.items()}
        """The scores as plain tensors, in the same memory."""
        self.trains_weights = recipe.trained == "both"
        self.free: dict[str, Tensor] = {
            name: nn.Parameter(weight.clone(), requires_grad=name not in frozen)
            for name, weight in weights.items()
            if self.trains_weights
        }
        """The weights, with zeros where they are pruned: the factor of the straight-through
        gradient. They are parameters if they are trained with the scores."""
        self._kept: list[Tensor] = []
        """The mask of living weights as numbers, if gates are kept."""
        self.shares: Shares = {}
        self.density = 1.0
        self.needs_gates = (
            self.trains_weights
            or type(self.rounding).slope is not Rounding.slope
            or self.regularizer.on == "gates"
            or self.regularizer.needs_density
        )
        """Whether to keep the gates of the forward pass, for a part or the gradient of weights."""
        self.now = replace(now, rng=rng, select=self._select)
        """The clock and state that the rounding sees."""
        self.state = self.regularizer.init_state(weights)
        """The state of the regularizer; other parts do not see it."""
        self._drawn_from = rng.get_state()

    @property
    def view(self) -> Tensors:
        """The view of the scores that is ranked and rounded."""
        return self.scoring.view(self.scores)

    def mask(self) -> Tensors:
        """Return the mask of a ticket, r(p) ⊙ q, with the random numbers of the last update."""
        rng = torch.Generator()
        rng.set_state(self._drawn_from)
        masks = self.rounding.hard(self.view, replace(self.now, rng=rng))
        return {name: masks[name].bool() & alive for name, alive in self.now.alive.items()}

    def freeze_(self, alive: Tensors, shares: Shares, density: float, weights: Tensors) -> None:
        """Set which weights are alive, and how many a rounding may keep.

        `weights` are the weights that are not trained, with zeros where they are pruned.
        """
        self.now.alive, self.shares, self.density = alive, shares, density
        if self.needs_gates:
            likes = self.scores.items()
            self._kept = [aligned(alive[name].to(own.dtype), own) for name, own in likes]
        if not self.trains_weights:
            self.free = weights
        self._drawn_from = self.rng.get_state()

    @never_traced
    def _select(self, view: Tensors) -> Tensors:
        """Select as many weights as the last freeze left."""
        return self.structure.select(view, self.now.alive, self.shares, self.density, checked=False)

    def keep_gates(self, numbers: list[Tensor]) -> list[Tensor]:
        """Store the gates of the next forward pass, with zeros where weights are pruned."""
        gates = [torch.empty_like(score) for score in self.scores.values()]
        torch._foreach_copy_(gates, numbers)
        torch._foreach_mul_(gates, self._kept)
        self.now.gates = dict(zip(self.scores, gates, strict=True))
        return gates

    def add_penalty_(self, gradients: Tensors, values: Tensors) -> None:
        """Add the gradient of the penalty, which sees its state in `now`."""
        self.now.state = self.state
        self.regularizer.add_gradient_(gradients, values, self.now)
        self.now.state = {}

    def trained(self) -> list[nn.Parameter]:
        """List the weights that are trained with the scores."""
        return [
            free
            for free in self.free.values()
            if isinstance(free, nn.Parameter) and free.requires_grad
        ]

    def take_gradients_(self, weights: Mapping[str, nn.Parameter]) -> None:
        """Move the gradients of the effective weights to the scores, zeros where there are none.

        Weights that train with the scores get dL/dw = dL/d(effective weight) · gate. This is not
        part of the compiled update, which must not create gradients.
        """
        self._drawn_from = self.rng.get_state()
        for score, weight in zip(self.parameters.values(), weights.values(), strict=True):
            gradient, weight.grad = weight.grad, None
            score.grad = torch.zeros_like(score) if gradient is None else aligned(gradient, score)
        if self.trains_weights:
            gradients = [score.grad for score in self.parameters.values() if score.grad is not None]
            pulls = torch._foreach_mul(gradients, list(self.now.gates.values()))
            for free, pull in zip(self.free.values(), pulls, strict=True):
                free.grad = pull if free.requires_grad else None

    def state_dict(self) -> StateDict:
        """Return scores, states of parts, and the random state of the last rounding."""
        shares = [[list(group), n] for group, n in self.shares.items()]
        own: StateDict = {"scores": self.scores, "shares": shares, "drawn_from": self._drawn_from}
        own["density"] = self.density
        if self.state:
            own["regularizer"] = self.state
        if self.trains_weights:
            own["weights"] = {name: free.detach() for name, free in self.free.items()}
        return own

    @torch.no_grad()
    def load_state_dict(self, state: StateDict) -> None:
        """Load a saved state; the next rounding draws the same random numbers as the last."""
        own = self.state_dict()
        for name, saved in checked_tensors(state["scores"], self.scores).items():
            self.scores[name].copy_(saved)
        self.density = float(state.get("density", 1.0))  # missing in older checkpoints
        for name in ("regularizer", "weights"):
            if name in own:
                _copy_(own[name], state.get(name))
        self._drawn_from = checked_rng_state(state["drawn_from"], self._drawn_from)
        self.rng.set_state(self._drawn_from)


def _copy_(own: Tensors, saved: object) -> None:
    """Copy saved tensors into place."""
    for name, tensor in checked_tensors(saved, own).items():
        own[name].copy_(tensor)


def as_numbers(mask: Tensor) -> Tensor:
    """Return a mask as numbers: as bytes, because torch converts booleans slowly on a CPU."""
    return mask.view(torch.uint8) if mask.dtype == torch.bool else mask
