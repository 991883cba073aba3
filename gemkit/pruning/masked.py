"""Any `nn.Module` under a mask, without changes of its structure.

The model's own prunable parameters *hold the effective weights* w ⊙ mask. Forward, backward,
`torch.compile`, autocast and DDP therefore see a plain dense network whose graph never changes,
and `state_dict` keeps its keys. Masks and scores are kept beside the model, by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from gemkit.core.selection import Shares
from gemkit.core.state import StateDict, checked_tensors
from gemkit.core.tensors import Tensors, aligned, call_with, counts, kept, parameters_of, total
from gemkit.parts.now import Now
from gemkit.parts.recipe import Recipe
from gemkit.pruning.learned import LearnedMask
from gemkit.pruning.packed import Packed
from gemkit.pruning.update import compiled_update, take_step, update, write_
from gemkit.training.plan import Plan


@final
class MaskedNet:
    """A model whose weights train under a mask, or whose mask is learned, or both.

    Where weights train, pruned ones stay exactly zero: their gradients are zeroed before every
    step, their optimizer state is cleared when they are pruned, and the mask is applied again
    after every step. Learned scores are a component beside the model, or absent. A frozen parameter
    (`requires_grad=False`) is not trained; if it has a mask, it keeps its values.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        learned: LearnedMask | None = None,
        now: Now | None = None,
    ) -> None:
        self.model = model
        self.parameters = parameters_of(model, names)
        self.learned = learned
        self.now = learned.now if learned is not None else now or Now()
        """Clock, mask and state, for the parts of the recipe."""
        like = next(iter(self.parameters.values()))
        wide = torch.promote_types(like.dtype, torch.float32)  # half precision counts to 256
        self.now.step = self.now.step.to(like.device, wide)
        self.now.dense = self.dense_outputs
        self._dense: Tensors = {}
        if learned is not None:  # the gradients of the weights become those of the scores
            own = {id(parameter) for parameter in self.parameters.values()}
            for parameter in model.parameters():
                is_own = id(parameter) in own
                parameter.requires_grad_(
                    is_own or (learned.trains_weights and parameter.requires_grad)
                )
        self._update = update
        self._kept: list[Tensor] = []
        """The mask of trained weights as numbers; empty while nothing is pruned."""
        self._rest = self._packed({name: own.clone() for name, own in self.effective.items()})
        """The last values of all weights before they were pruned."""
        everything = {
            name: torch.ones_like(weight, dtype=torch.bool)
            for name, weight in self.effective.items()
        }
        self._prune_(everything, {(name,): own.numel() for name, own in everything.items()}, 1.0)

    @classmethod
    def learning(
        cls,
        model: nn.Module,
        names: Sequence[str],
        recipe: Recipe,
        rng: torch.Generator,
        *,
        steps: int = 1,
        target: float = 0.05,
    ) -> Self:
        """Put a model under a mask that the recipe's scores learn in so many steps."""
        parameters = parameters_of(model, names)
        weights = {name: weight.detach() for name, weight in parameters.items()}
        frozen = {name for name, weight in parameters.items() if not weight.requires_grad}
        now = Now(steps=steps, target=target)
        return cls(model, names, LearnedMask(weights, recipe, rng, now, frozen))

    @property
    def effective(self) -> Tensors:
        """The prunable weights as the network uses them now."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    @property
    def mask(self) -> Tensors:
        """The mask of a ticket taken now, as booleans."""
        return self.alive if self.learned is None else self.learned.mask()

    @property
    def weights(self) -> Tensors:
        """The weights without the mask; pruned ones have their last value before pruning."""
        rest = self._at_rest()
        if self.learned is None:
            free = self.effective
        elif self.learned.trains_weights:
            free = {name: weight.detach() for name, weight in self.learned.free.items()}
        else:
            return rest
        return {
            name: torch.where(self.alive[name], weight, rest[name]) for name, weight in free.items()
        }

    @property
    def scores(self) -> Tensors:
        """The learned scores; empty if only weights are trained."""
        return {} if self.learned is None else self.learned.scores

    @property
    def strength(self) -> float | None:
        """The λ of the penalty on learned scores, or None; reads from the device."""
        if self.learned is None:
            return None
        strength = self.learned.regularizer.strength(replace(self.now, state=self.learned.state))
        return None if strength is None else float(strength)

    def trainable(self) -> list[nn.Parameter]:
        """List what the optimizer trains: scores first, then weights."""
        if self.learned is None:
            return [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        scores = list(self.learned.parameters.values())
        if not self.learned.trains_weights:
            return scores
        effective = {id(parameter) for parameter in self.parameters.values()}
        others = [
            parameter
            for parameter in self.model.parameters()
            if parameter.requires_grad and id(parameter) not in effective
        ]
        return [*scores, *self.learned.trained(), *others]

    def groups(self, plan: Plan) -> list[dict[str, Any]]:
        """Return parameter groups; scores that train beside weights have their own rate."""
        trainable = self.trainable()
        if self.learned is None or not self.learned.trains_weights:
            return [{"params": trainable}]
        count = len(self.learned.parameters)
        own = {"lr": plan.score_lr, "weight_decay": self.learned.scoring.default_weight_decay}
        return [{"params": trainable[:count], **own}, {"params": trainable[count:]}]

    @torch.no_grad()
    def freeze_(self, alive: Tensors, shares: Shares, density: float = 1.0) -> None:
        """Prune what is not alive, for good; a rounding that spends the budget gets its shares.

        Weights that were pruned and are alive again start at zero.
        """
        if self.learned is None or self.learned.trains_weights:
            self._rest = self._packed(self.weights)
        self._prune_(alive, shares, density)

    @torch.no_grad()
    def _prune_(self, alive: Tensors, shares: Shares, density: float) -> None:
        """Set what is alive, and write the weights under the mask."""
        self.alive = {
            name: aligned(alive[name].bool().clone(), weight)
            for name, weight in self.effective.items()
        }
        """Which weights are not pruned for good."""
        self.shares = shares
        """How many weights the last freeze left to every group of layers."""
        self._kept = []
        trained = self._trained()
        if trained and kept(self.alive) < total(self.alive):
            self._kept = [
                aligned(self.alive[name].to(own.dtype), own) for name, own in self.effective.items()
            ]
            torch._foreach_mul_(list(trained.values()), self._kept)
        if self.learned is not None:
            fixed = {} if self.learned.trains_weights else self._live()
            self.learned.freeze_(self.alive, shares, density, fixed)
            write_(list(self.parameters.values()), self.learned)

    def _trained(self) -> Mapping[str, Tensor]:
        """Return the prunable weights that the optimizer trains."""
        if self.learned is None:
            return self.parameters
        return self.learned.free if self.learned.trains_weights else {}

    @torch.no_grad()
    def apply_mask_(self, mask: Tensors) -> None:
        """Write the weights with any mask into the model."""
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
        self._prune_(self.alive, self.shares, 1.0)

    def state_dict(self) -> StateDict:
        """Return everything that training and freezing change."""
        held = chain(self.model.named_parameters(), self.model.named_buffers())
        model = {name: tensor.detach() for name, tensor in held}
        own: StateDict = {"model": model, "free": self._at_rest(), "alive": self.alive}
        own["step"] = self.now.step
        return own if self.learned is None else own | self.learned.state_dict()

    @torch.no_grad()
    def load_state_dict(self, state: StateDict) -> None:
        """Load a saved state."""
        own = self.state_dict()
        for name, saved in checked_tensors(state["model"], own["model"]).items():
            own["model"][name].copy_(saved)
        self._rest = self._packed(checked_tensors(state["free"], own["free"]))
        if "step" in state:  # missing in older checkpoints
            self.now.step.copy_(checked_tensors({"": state["step"]}, {"": self.now.step})[""])
        shares, density = self.shares, 1.0
        if self.learned is not None:
            self.learned.load_state_dict(state)
            shares = {tuple(group): int(n) for group, n in state["shares"]}
            density = self.learned.density
        self._prune_(checked_tensors(state["alive"], own["alive"]), shares, density)

    @torch.no_grad()
    def dense_outputs(self, inputs: Tensor) -> Tensor:
        """Compute the outputs of the network without its mask, and without changing it."""
        weights = self._dense or self.weights
        if self.learned is not None and not self.learned.trains_weights:
            self._dense = weights  # they never change
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        outputs: Tensor = call_with(self.model, {**buffers, **weights}, inputs)
        return outputs

    def compile_(self) -> bool:
        """Compile the update at its first call; see `gemkit.pruning.update`."""
        self._update = compiled_update()
        return True

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take one optimizer step with the gradients of a backward pass."""
        self.now.step.add_(1)
        if self.learned is not None:
            self.learned.take_gradients_(self.parameters)
        take_step(
            self._update,
            list(self.parameters.values()),
            list(self._trained().values()),
            self._kept,
            self.learned,
            optimizer,
        )

    def clear_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero the optimizer state of pruned weights.

        Frozen scores keep their momentum, because their weights never return.
        """
        for parameter, mask in zip(self._trained().values(), self._kept, strict=False):
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value.mul_(mask)

    def _held(self) -> Tensors:
        """Return all parameters and buffers, not copies."""
        parameters = self.model.named_parameters(remove_duplicate=False)
        buffers = self.model.named_buffers(remove_duplicate=False)
        return {name: tensor.detach() for name, tensor in (*parameters, *buffers)}

    def _packed(self, weights: Tensors) -> dict[str, Packed]:
        """Store weights, in less memory if possible."""
        return {
            name: Packed.of(aligned(weights[name], own)) for name, own in self.effective.items()
        }

    def _live(self) -> Tensors:
        """Return untrained weights, with zeros where they are pruned."""
        live: Tensors = {}
        for name, count in counts(self.alive).items():
            weight = self._rest[name].unpacked(self.parameters[name].detach())
            whole = count == weight.numel()
            live[name] = weight if whole else aligned(weight * self.alive[name], weight)
        return live

    def _at_rest(self) -> Tensors:
        """Return the last values of all weights before they were pruned. Do not write to them."""
        return {name: self._rest[name].unpacked(own) for name, own in self.effective.items()}
