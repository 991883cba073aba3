"""Scores that learn which weights of a network to use, while the weights stand still."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count, repeat

import torch
from torch import Tensor, nn

from gemkit import pieces as cutting
from gemkit.masking import MaskedNet
from gemkit.parts import LearnedScores, Rounding
from gemkit.pieces import Cut
from gemkit.recipe import Recipe
from gemkit.selection import Shares
from gemkit.standing import Standing, Whole, stand
from gemkit.stateful import State, matching, random_state
from gemkit.tensors import Tensors, parameters_of, total
from gemkit.wearing import Layer, Piece, TopWearer, wear_


class ScoredNet(MaskedNet):
    """A model whose weights stand still while scores learn which of them to use.

    The straight-through estimator is the closed form
    dL/dp = dL/d(effective weight) · w · alive · (slope of rounding and view), so what a backward
    pass leaves in a parameter's `.grad` becomes the gradient of the scores; these move, and the
    parameter gets its new effective weights, piece by piece while it is in the cache. The masks
    never enter autograd. What looks beyond an entry, and says so by its `scope`, waits.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str], recipe: Recipe, seed_scores: torch.Generator
    ) -> None:
        self._cuts = {name: Cut(weight) for name, weight in parameters_of(model, names).items()}
        self.recipe = recipe
        super().__init__(model, names)
        assert isinstance(recipe.scores, LearnedScores)
        self.scoring = recipe.scores
        self.rng = seed_scores
        self._rounding_has_slope = type(recipe.rounding).slope is not Rounding.slope
        self._worn: Tensors = {}
        drawn = self.scoring.init(self.effective, seed_scores)
        self.scores = {
            name: nn.Parameter(torch.empty_like(weight).copy_(drawn.pop(name)))
            for name, weight in self.effective.items()
        }
        self._moving = {
            name: [nn.Parameter(piece) for piece in cut.split(self.scores[name].detach())]
            for name, cut in self._cuts.items()
        }
        own = {id(parameter) for parameter in self.parameters.values()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in own)
        self.freeze_(self.alive, {tuple(self.parameters): total(self.effective)})

    def _stand(self, name: str, weight: Tensor) -> Standing:
        """Keep the weights of a layer so that they can be cut as its scores are.

        Where none ever dies, they are read as they are, which is faster.
        """
        laid_out = self._laid_out(name, weight)
        return Whole.of(laid_out) if self.recipe.rounding.spends_budget else stand(laid_out)

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
        alive = self.alive
        masks = self.recipe.rounding.masks(self.view, alive, self.shares, rng)
        return {name: mask.bool() & alive[name] for name, mask in masks}

    @property
    def weights(self) -> Tensors:
        """The weights that stand still."""
        return {name: standing.weights for name, standing in self._standing.items()}

    def trainable(self) -> list[nn.Parameter]:
        """List the scores, in the pieces that move together."""
        return list(chain.from_iterable(self._moving.values()))

    @torch.no_grad()
    def freeze_(self, alive: Tensors, shares: Shares) -> None:
        """Narrow what may be used, or what the rounding may keep, and round anew."""
        self.shares = shares
        self._keep(self._standing, alive)
        self._standing_pieces = {
            name: standing.parts.split(self._cuts[name])
            for name, standing in self._standing.items()
        }
        self._shares_in = {
            unit: {group: n for group, n in shares.items() if set(group) <= set(unit)}
            for unit in self._units()
        }
        self._wearers = self._make_wearers()
        self.round_()

    def _units(self) -> list[tuple[str, ...]]:
        """List which layers are rounded together; none where every score is rounded alone."""
        layers = list(self.scores)
        units: dict[str, list[tuple[str, ...]]] = {
            "element": [],
            "layer": [(name,) for name in layers],
            "share": list(self.shares),
            "network": [tuple(layers)],
        }
        return units[self.recipe.rounding.scope]

    def _make_wearers(self) -> dict[str, TopWearer]:
        """Find the layers whose weights can be written while their top scores are looked for."""
        if not self.recipe.rounding.ranks or self.recipe.rounding.scope != "share":
            return {}
        fit = {
            name
            for name, q in self.alive.items()
            if q.is_cpu and self._cuts[name].flattens and bool(q.all())
        }
        made = {
            unit: TopWearer(count, self.scoring.view)
            for unit, count in self.shares.items()
            if fit.issuperset(unit)
        }
        return {name: wearer for unit, wearer in made.items() for name in unit}

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take one step of the scores, and write the effective weights that follow."""
        self._worn = self.mask if self._rounding_has_slope else {}
        for name in self.scores:
            self._step_layer(name, optimizer)
        if self.recipe.regularizer.scope == "network":
            self._move(self.scores, chain.from_iterable(map(self._pieces, self.scores)), optimizer)
        self._round_units()
        for score in self.scores.values():  # only now: see docs/decisions/0007
            score.grad = None

    def _step_layer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Pull a layer's gradient back, and move its scores unless they wait for other layers."""
        scope = self.recipe.regularizer.scope
        for piece in self._pulled_back(name):
            if scope == "element":
                self._move({name: piece.score}, [piece], optimizer)
        if scope == "layer":
            self._move({name: self.scores[name]}, self._pieces(name), optimizer)

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
        waiting = deque(pieces)
        with _only([piece.score for piece in waiting], optimizer):
            optimizer.step()
        while waiting:
            piece = waiting.popleft()  # so that it takes no more memory than one of them
            piece.score.grad = None
            self.scoring.project_(piece.score.detach())
            if self.recipe.rounding.scope == "element":
                self._round_piece(piece)
            elif wearer := self._wearers.get(piece.layer):
                wearer.wear_early_(piece)

    @torch.no_grad()
    def round_(self) -> None:
        """Round the scores and write the effective weights into the model."""
        self._drawn_from = self.rng.get_state()
        if self.recipe.rounding.scope == "element":
            for piece in chain.from_iterable(map(self._pieces, self.scores)):
                self._round_piece(piece)
        self._round_units()

    def _round_units(self) -> None:
        """Round what is rounded together."""
        for unit in self._shares_in:
            self._round(unit)

    def _round_piece(self, piece: Piece) -> None:
        view, alive = {"": self.scoring.view(piece.score.detach())}, {"": piece.standing.alive}
        for _, mask in self.recipe.rounding.masks(view, alive, {}, self.rng):
            self._wear_piece(piece, mask)

    def _wear_piece(self, piece: Piece, mask: Tensor) -> None:
        """Write the effective weights of a piece."""
        wear_(piece.weight, piece.live, mask)

    def _round(self, unit: tuple[str, ...]) -> None:
        self._drawn_from = self.rng.get_state()
        if wearer := self._wearers.get(unit[0]):
            pieces = chain.from_iterable(map(self._pieces, unit))
            if wearer.wear_([self._flat(name) for name in unit], pieces):
                return
        view = {name: self.scoring.view(self.scores[name].detach()) for name in unit}
        alive = {name: self._standing[name].parts.alive for name in unit}
        for name, mask in self.recipe.rounding.masks(view, alive, self._shares_in[unit], self.rng):
            wear_(self.parameters[name].detach(), self._standing[name].parts.living(), mask)

    def _flat(self, name: str) -> Layer:
        """Lay out what belongs to a layer in one dimension."""
        cut = self._cuts[name]
        score, weight = (cut.flat(own[name].detach()) for own in (self.scores, self.parameters))
        return Layer(name, cut, score, weight, self._standing[name].parts.seen(cut.flat))

    def _pieces(self, name: str) -> Iterator[Piece]:
        """Cut what belongs to a layer; what the network holds anew, since it may be replaced."""
        weight = self._cuts[name].split(self.parameters[name].detach())
        parts = (self._moving[name], weight, self._standing_pieces[name])
        return map(Piece, repeat(name), count(step=cutting.PIECE), *parts)

    def _laid_out(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor of a layer's shape so that it can be cut into the layer's pieces."""
        if self._cuts[name].fits(tensor):
            return tensor
        return torch.empty_like(self.scores[name], dtype=tensor.dtype).copy_(tensor)

    def clear_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the momentum of frozen scores: alive alone keeps them out of the network."""

    def state(self) -> State:
        """Return also the scores, and where the random numbers of their rounding began."""
        shares = [[list(group), n] for group, n in self.shares.items()]
        return super().state() | {
            "scores": self.raw_scores,
            "shares": shares,
            "drawn_from": self._drawn_from,
        }

    @torch.no_grad()
    def restore_(self, state: State) -> None:
        """Become what a net was whose state this is, rounding as it last did."""
        for name, saved in matching(state["scores"], self.raw_scores).items():
            self.scores[name].copy_(saved)
        self.rng.set_state(random_state(state["drawn_from"], self._drawn_from))
        super().restore_(state)

    @property
    def raw_scores(self) -> Tensors:
        """The scores as plain tensors, sharing their memory."""
        return {name: score.detach() for name, score in self.scores.items()}


@contextmanager
def _only(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let the optimizer see just these of its parameters: looking at all of them takes long."""
    (group,) = groups = optimizer.param_groups
    optimizer.param_groups = [{**group, "params": parameters}]
    try:
        yield
    finally:
        optimizer.param_groups = groups
