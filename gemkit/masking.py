"""Any `nn.Module` under a mask, untouched in structure.

The model's own prunable parameters *hold the effective weights* w ⊙ mask. Forward, backward,
`torch.compile`, autocast and DDP therefore see a plain dense network whose graph never changes,
and `state_dict` keeps its keys. What belongs to pruning lives beside the model, by name.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain

import torch
from torch import Tensor, nn

from gemkit.selection import Shares
from gemkit.standing import Standing, Whole
from gemkit.stateful import State, matching
from gemkit.tensors import Tensors, parameters_of


class MaskedNet:
    """A model whose weights are trained under a mask: pruned ones stay exactly zero.

    A pruned weight is zero, its gradient is zeroed before every step, and its optimizer state is
    cleared when it is pruned; so momentum and weight decay have nothing to move it with. A frozen
    parameter (`requires_grad=False`) is not trained; where it has a mask, it keeps its values.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.model = model
        self.parameters = parameters_of(model, names)
        self._standing = {
            name: self._stand(name, parameter.detach().clone())
            for name, parameter in self.parameters.items()
        }
        """The weights as they were when last free."""
        self._pruned = False

    def _stand(self, name: str, weight: Tensor) -> Standing:
        """Keep the weights of a layer, all of which live."""
        return Whole.of(weight)

    @property
    def alive(self) -> Tensors:
        """Which weights are not pruned for good."""
        return {name: standing.parts.alive for name, standing in self._standing.items()}

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
            name: torch.where(
                standing.parts.alive, self.parameters[name].detach(), standing.weights
            )
            for name, standing in self._standing.items()
        }

    def trainable(self) -> list[nn.Parameter]:
        """List what the optimizer trains."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def freeze_(self, alive: Tensors, shares: Shares) -> None:
        """Take the newly pruned weights out for good."""
        self._keep(
            {name: self._stand(name, weight) for name, weight in self.weights.items()}, alive
        )
        self._pruned = True
        self._cut_out()

    def _keep(self, standing: Mapping[str, Standing], alive: Tensors) -> None:
        """Remember what the weights were, and which of them live from now on."""
        self._standing = {name: kept.under(alive[name]) for name, kept in standing.items()}

    def _cut_out(self) -> None:
        """Set the model's dead weights to zero."""
        for name, standing in self._standing.items():
            self.parameters[name].mul_(standing.parts.alive)

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
        before = {name: self._stand(name, snapshot[name].clone()) for name in self.parameters}
        self._keep(before, self.alive)
        self._cut_out()

    def state(self) -> State:
        """Return everything that training and freezing change."""
        held = chain(self.model.named_parameters(), self.model.named_buffers())
        model = {name: tensor.detach() for name, tensor in held}
        free = {name: standing.weights for name, standing in self._standing.items()}
        return {"model": model, "free": free, "alive": self.alive}

    @torch.no_grad()
    def restore_(self, state: State) -> None:
        """Become what a net was whose state this is."""
        own = MaskedNet.state(self)
        for name, saved in matching(state["model"], own["model"]).items():
            own["model"][name].copy_(saved)
        free = matching(state["free"], own["free"])
        alive = matching(state["alive"], own["alive"])
        self._keep({name: self._stand(name, weight) for name, weight in free.items()}, alive)
        shares = {tuple(group): int(n) for group, n in state.get("shares", [])}
        self.freeze_(alive, shares)

    def passing(
        self, images: Tensor, optimizer: torch.optim.Optimizer
    ) -> AbstractContextManager[None]:
        """Surround the passes through the model and the `step` that they are for."""
        return nullcontext()

    def settle_(self) -> None:
        """Let the model hold all its weights, where passes leave it without some."""

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take one optimizer step with the gradients that a backward pass has left."""
        if self._pruned:
            for name, standing in self._standing.items():
                if (gradient := self.parameters[name].grad) is not None:
                    # As numbers: torch does not vectorize a product with booleans.
                    gradient.mul_(standing.parts.alive.view(torch.uint8))
        optimizer.step()
        optimizer.zero_grad()

    def _held(self) -> Tensors:
        """Return all parameters and buffers themselves."""
        parameters = self.model.named_parameters(remove_duplicate=False)
        buffers = self.model.named_buffers(remove_duplicate=False)
        return {name: tensor.detach() for name, tensor in (*parameters, *buffers)}

    def clear_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero the optimizer's memory of pruned weights."""
        for name, standing in self._standing.items():
            parameter = self.parameters[name]
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value.mul_(standing.parts.alive)
