"""What a score may look at: the weights, what is still alive, batches, and a harmless forward."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gemkit.core.errors import DataError, ImportanceError
from gemkit.core.tensors import Tensors, as_input, call_with, seeded
from gemkit.core.text import number_of

Batch = tuple[Tensor, Tensor]
"""Images and their labels, on the device of the network."""

IGNORED = -100
"""In maps of classes, the label of a place that does not count: that of torch's losses."""


def cross_entropy(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch."""
    return F.cross_entropy(outputs, batch[1])


@dataclass(frozen=True)
class Wanted:
    """The data a score asks for: no batches, a few, or a few with every class alike.

    Batches have the size of those in training. With `per_class` they hold that many samples of
    every class all together (or what there is), sorted by class and cut into equal parts.
    """

    batches: int = 0
    per_class: int | None = None


@dataclass(frozen=True)
class Probe:
    """A network held still for measuring; nothing done through it changes the model.

    `weights` are the prunable weights as the network uses them now (pruned ones are zero) and
    `alive` says which may still be used. `batches` are all meant to be used, in order, and
    `shape` is that of one input. `rng` is the score's own stream of random numbers. `scores` is
    empty unless they are learned. `density` is what the freeze that asks will keep, for the few
    scores that depend on it, and `turn` counts the freezes before it. `objective` is the loss of
    outputs and a batch that the run minimizes, and `classes` says whether targets are classes.
    `indices` says whether inputs are indices, such as tokens. `on_pass` is called before every
    forward pass: to show progress, and to stop.
    """

    model: nn.Module
    weights: Tensors
    alive: Tensors
    batches: Sequence[Batch] = ()
    rng: torch.Generator = field(default_factory=torch.Generator)
    scores: Tensors = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    density: float = 0.05
    turn: int = 0
    objective: Callable[[Tensor, Batch], Tensor] = cross_entropy
    classes: bool = True
    indices: bool = False
    on_pass: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def leaves(self, *, rest: bool = False) -> Tensors:
        """Copy the weights to differentiate by them, in single precision at least.

        `rest` adds the other parameters that are trained: biases, norms and the like.
        """
        tensors = dict(self.weights)
        if rest:
            trained = {name for name, own in self.model.named_parameters() if own.requires_grad}
            tensors |= {name: own for name, own in self.rest().items() if name in trained}
        return {
            name: own.to(torch.promote_types(own.dtype, torch.float32), copy=True).requires_grad_()
            for name, own in tensors.items()
        }

    def rest(self) -> Tensors:
        """Return the model's own parameters and buffers other than the prunable weights."""
        prunable = {id(self.model.get_parameter(name)) for name in self.weights}
        parameters = {
            name: parameter.detach()
            for name, parameter in self.model.named_parameters()
            if id(parameter) not in prunable  # by identity: a tied weight has several names
        }
        return parameters | dict(self.model.named_buffers())

    def forward(self, tensors: Tensors, x: Tensor, *, training: bool = False) -> Tensor:
        """Run the model with other tensors in the places of those with the same names.

        They may be weights, but also biases, norms and buffers; what is not given is a copy of
        the model's own. All computing is done in the number format and on the device of what is
        given. Differentiable any number of times in `tensors`. `training` chooses batch statistics
        for normalization layers (and dropout) as `model.train()` would; dropout leaves the global
        random numbers as they were.
        """
        self.on_pass()
        like = next(iter(tensors.values()))
        state = {
            name: own.to(like.device, like.dtype if own.is_floating_point() else None, copy=True)
            for name, own in {**self.rest(), **self.weights}.items()
            if name not in tensors
        }
        devices = [like.device] if like.device.type == "cuda" else []
        # Fused attention has no second derivative.
        with (
            in_mode(self.model, training=training),
            sdpa_kernel(SDPBackend.MATH),
            torch.random.fork_rng(devices),
        ):
            output: Tensor = call_with(self.model, {**state, **tensors}, as_input(x, like))
        return output

    def loss(
        self,
        tensors: Tensors,
        turn: int,
        *,
        training: bool = False,
        temperature: float = 1.0,
        dense: bool = False,
    ) -> Tensor:
        """Return the loss of batch number `turn`, by the objective of the run.

        Logits of classes are divided by the temperature. Batches are used over again when there are
        no more. The same turn always meets the same dropout, so that a pass can be repeated. What
        is not alive counts as zero and gets no gradient, unless `dense` is true.
        """
        if not self.batches:
            raise ImportanceError("this score is measured on data: give it at least one batch")
        batch = images, labels = self.batches[turn % len(self.batches)]
        living = {
            name: tensor * self.alive[name] if name in self.alive and not dense else tensor
            for name, tensor in tensors.items()
        }
        with seeded(turn, images.device):
            logits = self.forward(living, images, training=training)
        try:
            return self.objective(logits / temperature if self.classes else logits, batch)
        except IndexError as error:  # raised on the CPU, where checking costs nothing
            where = f"batch {turn % len(self.batches)}"
            raise unless_a_label(error, labels, logits, where) from error

    def gradient(
        self,
        weights: Tensors,
        *,
        training: bool = False,
        temperature: float = 1.0,
        dense: bool = False,
    ) -> Tensors:
        """Sum the gradient of the loss over all batches, one at a time to save memory."""
        total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for turn in range(max(1, len(self.batches))):
            how: dict[str, Any] = {"training": training, "temperature": temperature}
            loss = self.loss(weights, turn, dense=dense, **how)
            for name, gradient in gradients(loss, weights).items():
                total[name] += gradient
        return total


def gradients(output: Tensor, leaves: Tensors, *, create_graph: bool = False) -> Tensors:
    """Differentiate a scalar by every leaf: zeros where one took no part."""
    found = torch.autograd.grad(
        output, list(leaves.values()), create_graph=create_graph, materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))


def hessian_product(output: Tensor, leaves: Tensors, vector: Tensors) -> Tensors:
    """Multiply the second derivative of a scalar by a vector, without ever forming the matrix."""
    slopes = gradients(output, leaves, create_graph=True)
    along = torch.stack([(slopes[name] * vector[name]).sum() for name in leaves]).sum()
    try:
        return gradients(along, leaves)
    except RuntimeError as error:  # of hard sigmoid, for one
        raise ImportanceError(
            f"these scores need second derivatives, and torch lacks one for this network: {error}; "
            "use scores of first order, such as 'snip', or 'prospr' with scores.first_order=true"
        ) from error


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Set training or evaluation mode, and give every submodule its own mode back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def no_output(where: str, label: int, outputs: int) -> DataError:
    """Word that a network has no output for a label."""
    return DataError(
        f"{where} holds label {label}, and the network has {number_of(outputs, 'output')}, for "
        f"labels 0 to {outputs - 1}; make it a network for "
        f"{number_of(label + 1, 'class', 'classes')}, or count the labels from 0"
    )


def unless_a_label(
    error: IndexError, labels: Tensor, outputs: Tensor, where: str = "a batch"
) -> Exception:
    """Return the error of a loss, or a better one if the network has no output for a label."""
    known = labels.dtype == torch.int64 and outputs.ndim > 1 and labels.numel() > 0
    if known and (highest := int(labels.max())) >= outputs.shape[1]:
        return no_output(where, highest, outputs.shape[1])
    return error
