"""Any `nn.Module` under a mask, untouched in structure.

The model's own prunable parameters *hold the effective weights* w ⊙ mask. Forward, backward,
`torch.compile`, autocast and DDP therefore see a plain dense network whose graph never changes,
and `state_dict` keeps its keys. What belongs to pruning lives beside the model, by name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from gemkit.gradients import each_gradient
from gemkit.parts import LearnedScores, Rounding
from gemkit.pieces import Cut, Piece, wear_
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
        self._factors: Tensors = {}

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
        self._factors = {
            name: self.alive[name].to(parameter.dtype)
            for name, parameter in self.parameters.items()
        }

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

    @contextmanager
    def stepping(self, optimizer: torch.optim.Optimizer, *, early: bool = True) -> Iterator[None]:
        """Take one optimizer step with the gradients of the backward pass inside the block.

        With `early`, each gradient is worked on as soon as it is complete, while it is still in
        the cache. Where several processes have to agree on gradients, it waits for the end of the
        block. The result is the same to the bit.
        """
        with each_gradient(self.parameters, partial(self._arrived, optimizer), early=early):
            yield
        self._finish(optimizer)

    @torch.no_grad()
    def _arrived(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        """Zero the gradients of a layer's pruned weights."""
        gradient = self.parameters[name].grad
        if self._factors and gradient is not None:
            gradient.mul_(self._factors[name])

    @torch.no_grad()
    def _finish(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer move everything that is trained, norms and biases too."""
        optimizer.step()
        optimizer.zero_grad()

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
    dL/dp = dL/d(effective weight) · w · alive · (slope of rounding and view), so as soon as the
    backward pass has a parameter's `.grad`, it becomes the gradient of the scores; these move, and
    the parameter gets its new effective weights, piece by piece while it is in the cache. The
    masks never enter autograd. What looks beyond an entry, and says so by its `scope`, waits.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str], recipe: Recipe, seed_scores: torch.Generator
    ) -> None:
        super().__init__(model, names)
        assert isinstance(recipe.scores, LearnedScores)
        self.recipe = recipe
        self.scoring = recipe.scores
        self.rng = seed_scores
        self._rounding_has_slope = type(recipe.rounding).slope is not Rounding.slope
        self._worn: Tensors = {}
        self._moved: set[str] = set()
        self._live = {name: weight.clone() for name, weight in self._before_pruning.items()}
        drawn = self.scoring.init(self._live, seed_scores)
        self.scores = {
            name: nn.Parameter(torch.empty_like(weight).copy_(drawn[name]))
            for name, weight in self._live.items()
        }
        self._cuts = {name: Cut(weight) for name, weight in self.parameters.items()}
        self._moving = {
            name: [nn.Parameter(piece) for piece in cut.split(self.scores[name].detach())]
            for name, cut in self._cuts.items()
        }
        own = {id(parameter) for parameter in self.parameters.values()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in own)
        self.freeze_(self.alive, {tuple(self.parameters): total(self.alive)})

    @property
    def view(self) -> Tensors:
        """What of the scores is ranked and rounded."""
        return {name: self.scoring.view(score) for name, score in self.raw_scores.items()}

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
        """List the scores, in the pieces that move together."""
        return list(chain.from_iterable(self._moving.values()))

    @torch.no_grad()
    def freeze_(self, alive: Tensors, shares: Shares) -> None:
        """Narrow what may be used, or what the rounding may keep, and round anew."""
        self.shares = shares
        self.alive = {name: self._laid_out(name, q.to(torch.bool)) for name, q in alive.items()}
        for name, weight in self._before_pruning.items():
            torch.mul(weight, self.alive[name], out=self._live[name])
        self._standing = {
            name: (cut.split(self._live[name]), cut.split(self.alive[name]))
            for name, cut in self._cuts.items()
        }
        layers = list(self.scores)
        units: dict[str, list[tuple[str, ...]]] = {
            "element": [],
            "layer": [(name,) for name in layers],
            "share": list(shares),
            "network": [tuple(layers)],
        }
        rounded = units[self.recipe.rounding.scope]
        self._unit_of = {name: unit for unit in rounded for name in unit}
        self._shares_in = {
            unit: {group: n for group, n in shares.items() if set(group) <= set(unit)}
            for unit in rounded
        }
        self.round_()

    @contextmanager
    def stepping(self, optimizer: torch.optim.Optimizer, *, early: bool = True) -> Iterator[None]:
        """Take one step of the scores, and write the effective weights that follow."""
        self._moved.clear()
        self._worn = self.mask if self._rounding_has_slope else {}
        with super().stepping(optimizer, early=early):
            yield

    @torch.no_grad()
    def _arrived(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        """Work on one layer as far as the parts let it go alone."""
        scope = self.recipe.regularizer.scope
        for piece in self._pulled_back(name):
            if scope == "element":
                self._move({name: piece.score}, [piece], optimizer)
        if scope == "layer":
            self._move({name: self.scores[name]}, self._pieces(name), optimizer)
        if scope != "network":
            self._round_complete([name])

    @torch.no_grad()
    def _finish(self, optimizer: torch.optim.Optimizer) -> None:
        """Do what had to wait for all gradients."""
        if self.recipe.regularizer.scope == "network":
            self._move(self.scores, chain.from_iterable(map(self._pieces, self.scores)), optimizer)
            self._round_complete(list(self.scores))

    @torch.no_grad()
    def pull_back_(self, name: str) -> None:
        """Turn the gradient of a layer's effective weights into that of its scores."""
        for _ in self._pulled_back(name):
            pass

    def _pulled_back(self, name: str) -> Iterator[Piece]:
        """Pull a layer's gradient back, and yield each piece when it has got its own."""
        parameter, score = self.parameters[name], self.scores[name]
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:  # the layer took no part in the loss
            gradient = torch.zeros_like(score)
        score.grad = self._laid_out(name, gradient)
        worn = self._laid_out(name, self._worn[name]) if self._worn else score
        gradients, masks = (self._cuts[name].split(each) for each in (score.grad, worn.detach()))
        for piece, gradient, mask in zip(self._pieces(name), gradients, masks, strict=True):
            raw = piece.score.detach()
            gradient.mul_(piece.live)
            slopes = [self.scoring.slope(raw)]
            if self._worn:
                slopes.append(self.recipe.rounding.slope(self.scoring.view(raw), mask))
            for slope in slopes:
                if slope is not None:
                    gradient.mul_(slope)
            piece.score.grad = gradient
            yield piece

    def _move(
        self,
        scores: Mapping[str, nn.Parameter],
        pieces: Iterable[Piece],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Add the penalty on these scores, and move the pieces that they consist of."""
        gradients = {
            name: gradient
            for name, score in scores.items()
            if (gradient := score.grad) is not None  # it never is
        }
        raw = {name: score.detach() for name, score in scores.items()}
        self.recipe.regularizer.add_gradient_(gradients, raw)
        optimizer.step()  # moves what has a gradient, and that is these pieces
        for piece in pieces:
            piece.score.grad = None
            self.scoring.project_(piece.score.detach())
            if self.recipe.rounding.scope == "element":
                self._round_piece(piece)

    def _round_complete(self, names: Sequence[str]) -> None:
        """Forget the gradients of layers that have moved, and round what is complete by now."""
        for name in names:
            self.scores[name].grad = None
        self._moved.update(names)
        for unit in dict.fromkeys(self._unit_of[name] for name in names if name in self._unit_of):
            if self._moved.issuperset(unit):
                self._round(unit)

    @torch.no_grad()
    def round_(self) -> None:
        """Round the scores and write the effective weights into the model."""
        self._drawn_from = self.rng.get_state()
        if self.recipe.rounding.scope == "element":
            for piece in chain.from_iterable(map(self._pieces, self.scores)):
                self._round_piece(piece)
        for unit in self._shares_in:
            self._round(unit)

    def _round_piece(self, piece: Piece) -> None:
        view, alive = {"": self.scoring.view(piece.score.detach())}, {"": piece.alive}
        for _, mask in self.recipe.rounding.masks(view, alive, {}, self.rng):
            wear_(piece.weight, piece.live, mask)

    def _round(self, unit: tuple[str, ...]) -> None:
        view = {name: self.scoring.view(self.scores[name].detach()) for name in unit}
        alive = {name: self.alive[name] for name in unit}
        self._drawn_from = self.rng.get_state()
        for name, mask in self.recipe.rounding.masks(view, alive, self._shares_in[unit], self.rng):
            wear_(self.parameters[name].detach(), self._live[name], mask)

    def _pieces(self, name: str) -> Iterator[Piece]:
        """Cut what belongs to a layer; what the network holds anew, since it may be replaced."""
        weight = self._cuts[name].split(self.parameters[name].detach())
        return map(Piece, self._moving[name], weight, *self._standing[name])

    def _laid_out(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor of a layer's shape so that it can be cut into the layer's pieces."""
        if self._cuts[name].fits(tensor):
            return tensor
        return torch.empty_like(self._live[name], dtype=tensor.dtype).copy_(tensor)

    def clear_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the momentum of frozen scores: alive alone keeps them out of the network."""

    @property
    def raw_scores(self) -> Tensors:
        """The scores as plain tensors, sharing their memory."""
        return {name: score.detach() for name, score in self.scores.items()}
