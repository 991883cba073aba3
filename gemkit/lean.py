"""Steps in the memory of plain training: weights are bytes until the network computes with them.

Plain training holds a weight, its gradient and its momentum. A search holds a score and its
momentum, too, and has little room for more. So in a lean step a layer's effective weights exist
only while it computes: they are made of their signs just before it runs, made again for its
backward pass, and gone when that has found their gradient, with which the scores move at once.
When training pauses, the model holds its weights as ever. No number differs from any other search.
"""

import copy
import math
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from gemkit.allocator import give_back
from gemkit.errors import FitError, TrainingError
from gemkit.recipe import Recipe
from gemkit.scored import ScoredNet
from gemkit.standing import Signed, Standing, WornSigns
from gemkit.stateful import State
from gemkit.tensors import Tensors, generator, parameters_of, prunable_names, seeded
from gemkit.uses import Uses, around
from gemkit.wearing import Piece

LARGE = 1 << 18
"""Weights of a layer that is worth hiding: for a smaller one it takes long, and saves little."""


NOT_LEAN = "search without --lean (in Python, lean=False)"


def _unsigned() -> FitError:
    return FitError(
        "no layer has weights that differ in nothing but their signs, which is what a lean search "
        f"keeps of them; use init 'signed_constant', or {NOT_LEAN}"
    )


def check_weights(recipe: Recipe, model: nn.Module) -> None:
    """Refuse a lean search, before it begins, of weights that are more than their signs."""
    parameters = parameters_of(model, prunable_names(model))
    weights = {name: parameter.detach() for name, parameter in parameters.items()}
    drawn = recipe.init.draw(weights, generator(0, "weights"))
    if not any(Signed.of(weight) for weight in drawn.values()):
        raise _unsigned()


class _Kept(NamedTuple):
    """What the graph of a forward pass remembers of a tensor."""

    tensor: Tensor
    version: int


class _Hidden(NamedTuple):
    """What the graph of a forward pass remembers of a weight instead of the weight."""

    name: str
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Room:
    """Memory for the weights of one layer after another, on the CPU.

    What comes and goes between the small things of a network in passing leaves holes that fit
    nothing later on, so the process would grow by layer after layer. A weight that somebody still
    holds, as a checkpoint within the network may, is not written over.
    """

    def __init__(self, layers: Iterable[Tensor]) -> None:
        largest = max((layer.nbytes for layer in layers if layer.is_cpu), default=0)
        self._memory = torch.empty(largest, dtype=torch.uint8).numpy()
        self._lent: weakref.ref[np.ndarray] | None = None

    def lend(self, like: Tensor) -> Tensor | None:
        """Return a tensor of this size, type and layout, if there is room for it."""
        if not like.is_cpu or (self._lent and self._lent() is not None):
            return None
        part = self._memory[: like.nbytes]
        self._lent = weakref.ref(part)
        return torch.from_numpy(part).view(like.dtype).as_strided(like.shape, like.stride())


class LeanNet(ScoredNet):
    """A model that holds its weights only while it computes with them, from step to step.

    `settle_` lets it hold them again. A weight that the model also uses outside of the layer it
    belongs to stays, and so do weights of several sizes. What is hidden is not a number, so that
    its use shows.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str], recipe: Recipe, seed_scores: torch.Generator
    ) -> None:
        self._owners: dict[nn.Module, list[str]] | None = None
        self._held_all = True
        self._passing = False
        self._hidden: set[str] = set()
        self._moved: set[str] = set()
        self._open: Counter[str] = Counter()
        self._in_use: dict[int | None, str] = {}
        super().__init__(model, names, recipe, seed_scores)
        self._room = _Room(self.scores[name] for name in self.folds)
        if not any(isinstance(standing, Signed) for standing in self._standing.values()):
            raise _unsigned()

    @property
    def folds(self) -> list[str]:
        """The layers whose weights need not be there, as far as their own kind goes."""
        kept = self._standing.items()
        return [name for name, standing in kept if isinstance(standing.parts, WornSigns)]

    def _stand(self, name: str, weight: Tensor) -> Standing:
        standing = super()._stand(name, weight)
        large = weight.numel() >= LARGE and self._cuts[name].flattens
        return standing.wearing() if isinstance(standing, Signed) and large else standing

    def _wear_piece(self, piece: Piece, mask: Tensor) -> None:
        if isinstance(piece.standing, WornSigns):
            piece.standing.wear_(mask)
        else:
            super()._wear_piece(piece, mask)

    @property
    def effective(self) -> Tensors:
        """The prunable weights as the network uses them now."""
        self.settle_()
        return super().effective

    def state(self) -> State:
        """Return everything that training and freezing change."""
        self.settle_()
        return super().state()

    @torch.no_grad()
    def round_(self) -> None:
        """Round the scores and write the effective weights into the model."""
        self.settle_()
        super().round_()
        self._write(*self.folds)

    def settle_(self) -> None:
        """Let the model hold all its weights again."""
        self._held_all = True
        for name in list(self._hidden):
            self._show(name, for_good=True)

    def _write(self, *names: str) -> None:
        """Write effective weights as the bytes say."""
        for name in names:
            weight = self._cuts[name].split(self.parameters[name].detach())
            for part, standing in zip(weight, self._standing_pieces[name], strict=True):
                assert isinstance(standing, WornSigns)
                standing.write_(part)

    @torch.no_grad()
    def _show(self, name: str, *, for_good: bool = False) -> None:
        """Make the effective weights of a layer, if it has none now."""
        if name in self._hidden:
            self._hidden.remove(name)
            score = self.scores[name]
            room = None if for_good else self._room.lend(score)
            self.parameters[name].data = torch.empty_like(score.detach()) if room is None else room
            self._write(name)

    def _hide(self, name: str) -> None:
        """Forget the effective weights of a layer, unless it computes with them."""
        if name not in self._hidden and not self._open[name]:
            weight = self.parameters[name]
            weight.data = weight.new_full((), math.nan).expand(weight.shape)
            self._hidden.add(name)

    @contextmanager
    def passing(self, images: Tensor, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Let the model compute without holding its weights, and move scores on the way back."""
        if self._owners is None:
            self._owners = self._find_owners(images)
        if not self._owners:
            yield
            return
        handles = around(self._owners, self._enter, self._leave)
        for name in self._hideable:
            self._hide(name)
            parameter: Any = self.parameters[name]  # torch gives what follows no type
            take = partial(self._take, name, optimizer)
            handles.append(parameter.register_post_accumulate_grad_hook(take))
        if self._held_all:
            self._held_all = False
            give_back()  # or what it held would stay with the process all the same
        self._passing = True
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        except BaseException:
            self.settle_()
            raise
        finally:
            for handle in handles:
                handle.remove()
            self._passing = False
            self._open.clear()
            self._in_use.clear()
            self._moved.clear()

    @property
    def _hideable(self) -> list[str]:
        """The layers whose weights come and go, each of them once."""
        return list(dict.fromkeys(chain.from_iterable((self._owners or {}).values())))

    def _enter(self, names: Sequence[str]) -> None:
        self._open.update(names)
        for name in names:
            self._refuse_moved(name)
            self._show(name)
            self._in_use[_place(self.parameters[name])] = name

    def _leave(self, names: Sequence[str]) -> None:
        self._open.subtract(names)
        self._in_use = {place: name for place, name in self._in_use.items() if self._open[name]}
        for name in names:
            self._hide(name)

    def _refuse_moved(self, name: str) -> None:
        """Stop where a layer that the step is done with is needed once more."""
        if name in self._moved:
            raise TrainingError(
                f"'{name}' is needed again after its gradient was there, as where reentrant "
                "checkpoints share a layer, and by then a lean search has moved its scores; "
                f"checkpoint with use_reentrant=False, or {NOT_LEAN}"
            )

    def _pack(self, tensor: Tensor) -> _Kept | _Hidden:
        """Let the graph remember only which weight it needs, if it is one that will be hidden."""
        name = self._in_use.get(_place(tensor))
        if name is None or tensor.dtype != self.scores[name].dtype:
            return _Kept(tensor, tensor._version)
        return _Hidden(name, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def _unpack(self, kept: _Kept | _Hidden) -> Tensor:
        if isinstance(kept, _Kept):
            if kept.tensor._version != kept.version:  # torch leaves this check to us
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    "inplace operation"
                )
            return kept.tensor
        self._refuse_moved(kept.name)
        self._show(kept.name)
        weight = self.parameters[kept.name].detach()
        return weight.as_strided(kept.size, kept.stride, kept.offset)

    @torch.no_grad()
    def _take(self, name: str, optimizer: torch.optim.Optimizer, parameter: Tensor) -> None:
        """Move the scores of a layer whose gradient is complete."""
        self._refuse_moved(name)
        self._moved.add(name)
        self._move_layer(name, optimizer)
        self._hide(name)

    def _move_layer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        self._show(name)
        self._step_layer(name, optimizer)
        self.scores[name].grad = None

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the scores that have not moved yet: of layers that stay, or got no gradient."""
        for name in self.scores:
            if name not in self._moved:
                self._move_layer(name, optimizer)
                if self._passing and name in self._hideable:
                    self._hide(name)
        self._write(*(name for name in self.folds if name not in self._hidden))

    def _find_owners(self, images: Tensor) -> dict[nn.Module, list[str]]:
        """Find the layers whose weights can be hidden, and to which modules these belong.

        The images go through the model once, to see whether it uses weights elsewhere, too. That
        leaves no trace.
        """
        model = copy.deepcopy(self.model)
        weights = {name: model.get_parameter(name) for name in self.folds}
        uses = Uses({id(weight): name for name, weight in weights.items()})
        versions = {name: weight._version for name, weight in weights.items()}
        around(uses.owned_in(model), uses.open.update, uses.open.subtract)
        with torch.no_grad(), seeded(0, images.device), uses:
            model(images)
        stay = uses.elsewhere.union(
            name for name, weight in weights.items() if weight._version != versions[name]
        )
        own = Uses({id(self.parameters[name]): name for name in self.folds if name not in stay})
        return own.owned_in(self.model)


def _place(tensor: Tensor) -> int | None:
    """Return where in memory the numbers of a tensor begin, if they lie there one by one."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else None
