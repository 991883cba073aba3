"""Any `nn.Module` under a mask, untouched in structure.

The model's own prunable parameters *hold the effective weights* w ⊙ mask. Forward, backward,
`torch.compile`, autocast and DDP therefore see a plain dense network whose graph never changes,
and `state_dict` keeps its keys. What belongs to pruning lives beside the model, by name.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from gemkit.parts import LearnedScores, Rounding
from gemkit.recipe import Recipe
from gemkit.selection import Shares
from gemkit.tensors import Tensors, parameters_of, total


class MaskedNet:
    """A model whose weights are trained under a mask: pruned ones stay exactly zero.

    A pruned weight is zero, its gradient is zeroed before every step, and its optimizer state is
    cleared when it is pruned; so momentum and weight decay have nothing to move it with.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.model = model
        self.parameters = parameters_of(model, names)
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
        self.alive: Tensors = {
            name: torch.ones_like(parameter, dtype=torch.bool)
            for name, parameter in self.parameters.items()
        }
        self._before_pruning: Tensors = {
            name: parameter.detach().clone() for name, parameter in self.parameters.items()
        }
        self._factors: list[Tensor] = []

    @property
    def effective(self) -> Tensors:
        """The prunable weights as the network uses them now."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    @property
    def mask(self) -> Tensors:
        """What the network uses now, as booleans."""
        return self.alive

    @property
    def weights(self) -> Tensors:
        """The weights without the mask: pruned ones as they were when last free."""
        return {
            name: torch.where(self.alive[name], parameter.detach(), self._before_pruning[name])
            for name, parameter in self.parameters.items()
        }

    def trainable(self) -> list[nn.Parameter]:
        """List what the optimizer trains."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def freeze_(self, alive: Tensors, shares: Shares) -> None:
        """Take the newly pruned weights out for good."""
        self._before_pruning = self.weights
        self.alive = {name: mask.to(torch.bool) for name, mask in alive.items()}
        for name, parameter in self.parameters.items():
            parameter.mul_(self.alive[name])
        self._factors = [
            self.alive[name].to(parameter.dtype) for name, parameter in self.parameters.items()
        ]

    @torch.no_grad()
    def wear_(self, mask: Tensors) -> None:
        """Write the weights under any mask into the model."""
        for name, weight in self.weights.items():
            self.parameters[name].copy_(weight * mask[name])

    def snapshot(self) -> Tensors:
        """Copy everything the model holds, parameters and buffers, a tied one under each name."""
        return {name: tensor.clone() for name, tensor in self._held().items()}

    @torch.no_grad()
    def rewind_(self, snapshot: Tensors) -> None:
        """Go back to a snapshot from before any weight was pruned, under the mask of today."""
        for name, tensor in self._held().items():
            tensor.copy_(snapshot[name])
        self._before_pruning = {name: snapshot[name].clone() for name in self.parameters}
        for name, parameter in self.parameters.items():
            parameter.mul_(self.alive[name])

    @torch.no_grad()
    def before_step(self) -> None:
        """Zero the gradients of pruned weights."""
        if self._factors:
            torch._foreach_mul_(gradients_of(self.parameters.values()), self._factors)

    def after_step(self) -> None:
        """Nothing moved that should not have."""

    def _held(self) -> Tensors:
        """Return all parameters and buffers themselves."""
        parameters = self.model.named_parameters(remove_duplicate=False)
        buffers = self.model.named_buffers(remove_duplicate=False)
        return {name: tensor.detach() for name, tensor in (*parameters, *buffers)}

    def clear_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero the optimizer's memory of pruned weights."""
        for name, parameter in self.parameters.items():
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value.mul_(self.alive[name])


class ScoredNet(MaskedNet):
    """A model whose weights stand still while scores learn which of them to use.

    The straight-through estimator is the closed form
    dL/dp = dL/d(effective weight) · w · alive · (slope of rounding and view), so after
    `backward()` each parameter's own `.grad` becomes the gradient of its scores in a few fused
    passes; the masks never enter autograd.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str], recipe: Recipe, seed_scores: torch.Generator
    ) -> None:
        super().__init__(model, names)
        assert isinstance(recipe.scores, LearnedScores)
        self.recipe = recipe
        self.scoring = recipe.scores
        self.rng = seed_scores
        self.view: Tensors = {}
        self._rounding_has_slope = type(recipe.rounding).slope is not Rounding.slope
        self.shares: Shares = {tuple(self.parameters): total(self.alive)}
        self._live = {name: weight.clone() for name, weight in self._before_pruning.items()}
        drawn = self.scoring.init(self._live, seed_scores)
        self.scores = {
            name: nn.Parameter(torch.empty_like(weight).copy_(drawn[name]))
            for name, weight in self._live.items()
        }
        own = {id(parameter) for parameter in self.parameters.values()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in own)
        self.round_()

    @property
    def mask(self) -> Tensors:
        """What the network uses now: r(p) ⊙ q, rounded again as it was for the last step.

        Masks are not kept, because the model's own parameters show their effect.
        """
        rng = torch.Generator()
        rng.set_state(self._drawn_from)
        masks = self.recipe.rounding.masks(self.view, self.alive, self.shares, rng)
        return {name: mask.bool() & self.alive[name] for name, mask in masks}

    @property
    def weights(self) -> Tensors:
        """The weights that stand still."""
        return self._before_pruning

    def trainable(self) -> list[nn.Parameter]:
        """List the scores."""
        return list(self.scores.values())

    @torch.no_grad()
    def freeze_(self, alive: Tensors, shares: Shares) -> None:
        """Narrow what may be used, or what the rounding may keep, and round anew."""
        self.shares = shares
        self.alive = {name: mask.to(torch.bool) for name, mask in alive.items()}
        for name, weight in self._before_pruning.items():
            torch.mul(weight, self.alive[name], out=self._live[name])
        self.round_()

    @torch.no_grad()
    def before_step(self) -> None:
        """Turn the gradients of effective weights into gradients of scores."""
        named = dict(zip(self.scores, gradients_of(self.parameters.values()), strict=True))
        masks = self.mask if self._rounding_has_slope else {}
        for name, gradient in named.items():
            # Layer by layer, so that a gradient is still in the cache for its next factor.
            gradient.mul_(self._live[name])
            slopes = [self.scoring.slope(self.scores[name].detach())]
            if masks:
                slopes.append(self.recipe.rounding.slope(self.view[name], masks[name]))
            for slope in slopes:
                if slope is not None:
                    gradient.mul_(slope)
        self.recipe.regularizer.add_gradient_(named, self.raw_scores)
        for parameter in self.parameters.values():
            parameter.grad = None
        for name, score in self.scores.items():
            score.grad = named[name]

    @torch.no_grad()
    def after_step(self) -> None:
        """Bring the scores back into bounds and write the new effective weights."""
        for score in self.scores.values():
            self.scoring.project_(score.detach())
        self.round_()

    @torch.no_grad()
    def round_(self) -> None:
        """Round the scores and write the effective weights into the model."""
        for name, score in self.scores.items():
            # One layer at a time: an old view makes room for the next before all are there.
            self.view[name] = self.scoring.view(score.detach())
        self._drawn_from = self.rng.get_state()
        masks = self.recipe.rounding.masks(self.view, self.alive, self.shares, self.rng)
        for name, mask in masks:
            factor = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
            torch.mul(self._live[name], factor, out=self.parameters[name].detach())

    def clear_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the momentum of frozen scores: alive alone keeps them out of the network."""

    @property
    def raw_scores(self) -> Tensors:
        """The scores as plain tensors, sharing their memory."""
        return {name: score.detach() for name, score in self.scores.items()}


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the gradients, zeros where a parameter took no part in the loss."""
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in parameters
    ]
