"""Learned scores beside a network: which of its weights to use, while the weights stand still."""

from collections.abc import Mapping

import torch
from torch import nn

from gemkit.parts import LearnedScores, Rounding
from gemkit.recipe import Recipe
from gemkit.selection import Shares
from gemkit.stateful import State, matching, random_state
from gemkit.tensors import Tensors, aligned


class LearnedMask:
    """Scores, and what turns them into the mask of a network.

    `gemkit.update` moves the scores and writes the masked weights; nothing here enters autograd.
    All tensors of a layer have the strides of its weight.
    """

    def __init__(self, weights: Tensors, recipe: Recipe, rng: torch.Generator) -> None:
        assert isinstance(recipe.scores, LearnedScores)
        self.scoring = recipe.scores
        self.rounding = recipe.rounding
        self.regularizer = recipe.regularizer
        self.rng = rng
        drawn = self.scoring.init({name: weight.clone() for name, weight in weights.items()}, rng)
        self.parameters = {
            name: nn.Parameter(torch.empty_like(weight).copy_(drawn.pop(name)))
            for name, weight in weights.items()
        }
        """The scores, as the optimizer knows them."""
        self.scores = {name: score.detach() for name, score in self.parameters.items()}
        """The scores as plain tensors that share their memory."""
        self.alive: Tensors = {}
        self.live: Tensors = {}
        """Weights · alive: what the gradient of an effective weight is multiplied by."""
        self.shares: Shares = {}
        self.needs_masks = type(self.rounding).slope is not Rounding.slope
        self.masks: Tensors = {}
        """What the network uses now, kept where the rounding's slope depends on it."""
        self._drawn_from = rng.get_state()

    @property
    def view(self) -> Tensors:
        """What of the scores is ranked and rounded."""
        return self.scoring.view(self.scores)

    def mask(self) -> Tensors:
        """Round the scores as the last update did: r(p) ⊙ q, as booleans.

        Masks are not kept, because the effective weights show their effect.
        """
        rng = torch.Generator()
        rng.set_state(self._drawn_from)
        masks = self.rounding.masks(self.view, self.alive, self.shares, rng)
        return {name: masks[name].bool() & alive for name, alive in self.alive.items()}

    def freeze_(self, alive: Tensors, live: Tensors, shares: Shares) -> None:
        """Narrow what may be used, or what the rounding may keep."""
        self.alive, self.live, self.shares = alive, live, shares
        self._drawn_from = self.rng.get_state()

    def take_gradients_(self, weights: Mapping[str, nn.Parameter]) -> None:
        """Move the gradients of the effective weights to the scores, zeros where there are none."""
        self._drawn_from = self.rng.get_state()
        for score, weight in zip(self.parameters.values(), weights.values(), strict=True):
            gradient = weight.grad
            if gradient is None:
                gradient = torch.zeros_like(score)
            elif gradient.stride() != score.stride():
                gradient = aligned(gradient, score)
            score.grad, weight.grad = gradient, None

    def state(self) -> State:
        """Return the scores, and where the random numbers of their rounding began."""
        shares = [[list(group), n] for group, n in self.shares.items()]
        return {"scores": self.scores, "shares": shares, "drawn_from": self._drawn_from}

    @torch.no_grad()
    def restore_(self, state: State) -> None:
        """Load a saved state; the next rounding draws what the last one did."""
        for name, saved in matching(state["scores"], self.scores).items():
            self.scores[name].copy_(saved)
        self._drawn_from = random_state(state["drawn_from"], self._drawn_from)
        self.rng.set_state(self._drawn_from)
