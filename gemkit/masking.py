"""Any `nn.Module` under a mask, untouched in structure.

The model's own prunable parameters *hold the effective weights* w ⊙ mask. Forward, backward,
`torch.compile`, autocast and DDP therefore see a plain dense network whose graph never changes,
and `state_dict` keeps its keys. What belongs to pruning lives beside the model, by name.
"""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from gemkit.selection import Shares
from gemkit.stateful import State, matching
from gemkit.tensors import Tensors, parameters_of


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
        self._pruned = False

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
        self.alive = {
            name: torch.empty_like(parameter, dtype=torch.bool).copy_(alive[name])
            for name, parameter in self.parameters.items()
        }
        self._pruned = True
        for name, parameter in self.parameters.items():
            parameter.mul_(self.alive[name])

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

    def state(self) -> State:
        """Return everything that training and freezing change."""
        held = chain(self.model.named_parameters(), self.model.named_buffers())
        model = {name: tensor.detach() for name, tensor in held}
        return {"model": model, "free": self._before_pruning, "alive": self.alive}

    @torch.no_grad()
    def restore_(self, state: State) -> None:
        """Become what a net was whose state this is."""
        own = MaskedNet.state(self)
        for name, saved in matching(state["model"], own["model"]).items():
            own["model"][name].copy_(saved)
        self._before_pruning = matching(state["free"], own["free"])
        self.alive = matching(state["alive"], own["alive"])
        shares = {tuple(group): int(n) for group, n in state.get("shares", [])}
        self.freeze_(self.alive, shares)

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take one optimizer step with the gradients that a backward pass has left."""
        if self._pruned:
            for name, parameter in self.parameters.items():
                if parameter.grad is not None:
                    # As numbers: torch does not vectorize a product with booleans.
                    parameter.grad.mul_(self.alive[name].view(torch.uint8))
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
