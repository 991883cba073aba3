"""Any `nn.Module` under a mask, untouched in structure.

The model's own prunable parameters *hold the effective weights* w ⊙ mask. Forward, backward,
`torch.compile`, autocast and DDP therefore see a plain dense network whose graph never changes,
and `state_dict` keeps its keys. What belongs to pruning lives beside the model, by name.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Self

import torch
from torch import Tensor, nn

from gemkit.learned import LearnedMask
from gemkit.packing import Packed
from gemkit.recipe import Recipe
from gemkit.selection import Shares
from gemkit.stateful import State, matching
from gemkit.tensors import Tensors, aligned, kept, parameters_of, total
from gemkit.update import Updater, write_


class MaskedNet:
    """A model whose weights train under a mask, or stand still while learned scores choose one.

    Where weights train, pruned ones stay exactly zero: their gradients are zeroed before every
    step, their optimizer state is cleared when they are pruned, and the mask is applied again
    after every step. Learned scores are a component beside the model, or absent. A frozen parameter
    (`requires_grad=False`) is not trained; where it has a mask, it keeps its values.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str], learned: LearnedMask | None = None
    ) -> None:
        self.model = model
        self.parameters = parameters_of(model, names)
        self.learned = learned
        if learned is not None:  # the gradients of the weights become those of the scores
            own = {id(parameter) for parameter in self.parameters.values()}
            for parameter in model.parameters():
                parameter.requires_grad_(id(parameter) in own)
        self._update = Updater()
        self._kept: list[Tensor] = []
        """The mask of weights that train, as numbers; empty while nothing is pruned."""
        self._rest = self._packed({name: own.clone() for name, own in self.effective.items()})
        """The weights as they were when last free."""
        everything = {
            name: torch.ones_like(weight, dtype=torch.bool)
            for name, weight in self.effective.items()
        }
        self._prune_(everything, {tuple(everything): total(everything)})

    @classmethod
    def learning(
        cls, model: nn.Module, names: Sequence[str], recipe: Recipe, rng: torch.Generator
    ) -> Self:
        """Put a model under a mask that the recipe's scores learn; nothing else is trained."""
        weights = {name: weight.detach() for name, weight in parameters_of(model, names).items()}
        return cls(model, names, LearnedMask(weights, recipe, rng))

    @property
    def effective(self) -> Tensors:
        """The prunable weights as the network uses them now."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    @property
    def mask(self) -> Tensors:
        """What the network uses now, as booleans."""
        return self.alive if self.learned is None else self.learned.mask()

    @property
    def weights(self) -> Tensors:
        """The weights without the mask: pruned ones as they were when last free."""
        rest = self._at_rest()
        if self.learned is not None:
            return rest
        return {
            name: torch.where(self.alive[name], weight, rest[name])
            for name, weight in self.effective.items()
        }

    @property
    def scores(self) -> Tensors:
        """The learned scores; none where weights are trained."""
        return {} if self.learned is None else self.learned.scores

    def trainable(self) -> list[nn.Parameter]:
        """List what the optimizer trains."""
        if self.learned is not None:
            return list(self.learned.parameters.values())
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def freeze_(self, alive: Tensors, shares: Shares) -> None:
        """Prune for good what is not alive; a rounding that spends the budget gets its shares."""
        if self.learned is None:
            self._rest = self._packed(self.weights)
        self._prune_(alive, shares)

    @torch.no_grad()
    def _prune_(self, alive: Tensors, shares: Shares) -> None:
        """Set what is alive, and write the weights under the mask."""
        self.alive = {
            name: aligned(alive[name].bool().clone(), weight)
            for name, weight in self.effective.items()
        }
        """Which weights are not pruned for good."""
        self.shares = shares
        """What the last freeze left to every group of layers."""
        if self.learned is not None:
            self.learned.freeze_(self.alive, self._live(), shares)
            write_(list(self.parameters.values()), self.learned)
        elif kept(self.alive) < total(self.alive):
            self._kept = [
                aligned(self.alive[name].to(own.dtype), own) for name, own in self.effective.items()
            ]
            torch._foreach_mul_(list(self.parameters.values()), self._kept)

    @torch.no_grad()
    def apply_mask_(self, mask: Tensors) -> None:
        """Write the weights under any mask into the model."""
        for name, weight in self.weights.items():
            self.parameters[name].copy_(weight * mask[name])

    def snapshot(self) -> Tensors:
        """Copy everything the model holds, parameters and buffers, a tied one under each name."""
        return {name: tensor.clone() for name, tensor in self._held().items()}

    @torch.no_grad()
    def rewind_(self, snapshot: Tensors) -> None:
        """Restore a snapshot, taken before any weight was pruned, under the current mask."""
        for name, tensor in self._held().items():
            tensor.copy_(snapshot[name])
        self._rest = self._packed({name: snapshot[name].clone() for name in self.parameters})
        self._prune_(self.alive, self.shares)

    def state(self) -> State:
        """Return everything that training and freezing change."""
        held = chain(self.model.named_parameters(), self.model.named_buffers())
        model = {name: tensor.detach() for name, tensor in held}
        own = {"model": model, "free": self._at_rest(), "alive": self.alive}
        return own if self.learned is None else own | self.learned.state()

    @torch.no_grad()
    def restore_(self, state: State) -> None:
        """Load a saved state."""
        own = self.state()
        for name, saved in matching(state["model"], own["model"]).items():
            own["model"][name].copy_(saved)
        self._rest = self._packed(matching(state["free"], own["free"]))
        shares = self.shares
        if self.learned is not None:
            self.learned.restore_(state)
            shares = {tuple(group): int(n) for group, n in state["shares"]}
        self._prune_(matching(state["alive"], own["alive"]), shares)

    def compile_(self) -> None:
        """Compile the update when it first takes place; see `gemkit.update`."""
        self._update = Updater(compiled=True)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take one optimizer step with the gradients that a backward pass has left."""
        if self.learned is not None:
            self.learned.take_gradients_(self.parameters)
        self._update(list(self.parameters.values()), optimizer, self._kept, self.learned)

    def clear_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero the optimizer's memory of pruned weights.

        Frozen scores keep their momentum: they stay out of the network whatever they become.
        """
        for parameter, mask in zip(self.parameters.values(), self._kept, strict=False):
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value.mul_(mask)

    def _held(self) -> Tensors:
        """Return all parameters and buffers themselves."""
        parameters = self.model.named_parameters(remove_duplicate=False)
        buffers = self.model.named_buffers(remove_duplicate=False)
        return {name: tensor.detach() for name, tensor in (*parameters, *buffers)}

    def _packed(self, weights: Tensors) -> dict[str, Packed]:
        """Keep these weights themselves, or less where that will do."""
        return {
            name: Packed.of(aligned(weights[name], own)) for name, own in self.effective.items()
        }

    def _live(self) -> Tensors:
        """Return the weights that stand still, with zeros for pruned ones."""
        live: Tensors = {}
        for name, alive in self.alive.items():  # one copy at a time
            weight = self._rest[name].unpacked(self.parameters[name].detach())
            live[name] = weight if bool(alive.all()) else aligned(weight * alive, weight)
        return live

    def _at_rest(self) -> Tensors:
        """Return the weights as they were when last free. Do not write to them."""
        return {name: self._rest[name].unpacked(own) for name, own in self.effective.items()}
