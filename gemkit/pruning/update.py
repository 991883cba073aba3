"""The update: one step of learned scores, of weights under a mask, or of both.

Every call is for all layers at once, so the number of kernels does not depend on the number of
layers; only a rounding that ranks, such as `topk`, takes a few for each. On CUDA this holds if the
tensors of a list, and of lists that are combined, agree in dtype and strides; otherwise torch runs
one kernel per tensor. Nothing is read back from the device. `torch.compile` can compile all of it
as one graph.
"""

import inspect
import types
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gemkit.core.tensors import all_aligned
from gemkit.pruning.learned import LearnedMask, as_numbers


def update(
    effective: Sequence[nn.Parameter],
    trained: Sequence[Tensor],
    kept: Sequence[Tensor],
    learned: LearnedMask | None,
    step: Callable[[], object],
) -> None:
    """Take a `step` with the gradients of a backward pass, and write the masked weights.

    `effective` are the weights that the network uses, and `trained` those that the optimizer
    trains: the same ones, others beside learned scores, or none. `kept` is their mask, zeros and
    ones of their own dtype; it is applied to their gradients, and to the weights after the step. It
    is empty while nothing is pruned. Autograd is off.
    """
    if learned is not None:
        pull_back_(learned)
    if kept:
        used = [(w.grad, k) for w, k in zip(trained, kept, strict=True) if w.grad is not None]
        if used:
            torch._foreach_mul_([gradient for gradient, _ in used], [k for _, k in used])
    step()
    if kept:
        torch._foreach_mul_(list(trained), list(kept))
    if learned is not None:
        learned.scoring.project_(learned.scores)
        write_(effective, learned)


def pull_back_(learned: LearnedMask) -> None:
    """Turn gradients of effective weights into those of the scores.

    dL/dp = (dL/d(effective weight) · w · alive + d penalty/d gate) · slopes + d penalty/dp

    `slopes` are those of the rounding and the view, 1 if gradients pass straight through.
    """
    gradients = [score.grad for score in learned.parameters.values() if score.grad is not None]
    gates = learned.now.gates
    torch._foreach_mul_(gradients, [free.detach() for free in learned.free.values()])
    named = dict(zip(learned.scores, gradients, strict=True))
    if learned.regularizer.on == "gates":
        learned.add_penalty_(named, gates)
    slopes = [learned.scoring.slope(learned.scores)]
    if learned.needs_gates:
        slopes.append(learned.rounding.slope(learned.view, gates, learned.now))
    for slope in slopes:
        if slope is not None:
            factors = (slope[name] for name in learned.scores)
            torch._foreach_mul_(gradients, all_aligned(factors, learned.scores.values()))
    if learned.regularizer.on == "scores":
        learned.add_penalty_(named, learned.scores)


def write_(effective: Sequence[nn.Parameter], learned: LearnedMask) -> None:
    """Round the scores and write the effective weights: w ⊙ alive ⊙ gate."""
    masks = learned.rounding.masks(learned.view, learned.now)
    numbers = [as_numbers(masks[name]) for name in learned.scores]
    gates = all_aligned(numbers, learned.scores.values())
    if learned.needs_gates:
        gates = learned.keep_gates(gates)
    torch._foreach_copy_(list(effective), gates)
    torch._foreach_mul_(list(effective), [free.detach() for free in learned.free.values()])


def compiled_update() -> Callable[..., None]:
    """Compile the update for one network.

    torch limits the number of graphs per function, over all networks of a process. So every
    network compiles a copy of the code.
    """
    names = dict(update.__globals__)
    for one in (pull_back_, write_, update):
        names[one.__name__] = types.FunctionType(one.__code__.replace(), names, one.__name__)
    compiled: Callable[..., None] = torch.compile(names["update"], dynamic=False)
    return compiled


@torch.no_grad()
def take_step(
    take: Callable[..., None],
    effective: Sequence[nn.Parameter],
    trained: Sequence[Tensor],
    kept: Sequence[Tensor],
    learned: LearnedMask | None,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Update with an optimizer; `take` is `update`, or its compiled form."""
    if take is update:
        take(effective, trained, kept, learned, partial(_step, optimizer))
    else:
        # The step without torch's wrappers, which cannot be compiled.
        step = partial(inspect.unwrap(type(optimizer).step), optimizer)
        take(effective, trained, kept, learned, step)
        optimizer.zero_grad()


def _step(optimizer: torch.optim.Optimizer) -> None:
    """Take a step, and free the gradients before masks need memory."""
    optimizer.step()
    optimizer.zero_grad()
