"""The update: one step of learned scores, or of weights under a mask, on lists of whole tensors.

Every call below is for all layers at once, so the number of kernels does not depend on how many
layers there are. On CUDA that holds while the tensors of a list, and of lists that go together,
agree in dtype and strides; otherwise torch takes them one by one. Nothing is read back from the
device. `torch.compile` can take all of it as one graph.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gemkit.learned import LearnedMask
from gemkit.tensors import Tensors, all_aligned


def update(
    weights: Sequence[nn.Parameter],
    step: Callable[[], object],
    kept: Sequence[Tensor],
    learned: LearnedMask | None,
) -> None:
    """Take a `step` with the gradients of a backward pass, and write the masked weights.

    Without learned scores, weights train under the mask `kept`, zeros and ones of their own type;
    it is applied to their gradients, and to themselves whatever the optimizer did. Empty means
    that nothing is pruned. Learned scores have taken the gradients of the weights. Autograd is off.
    """
    if learned is not None:
        learned.regularizer.add_gradient_(pull_back_(learned), learned.scores)
    elif kept:
        used = [(w.grad, k) for w, k in zip(weights, kept, strict=True) if w.grad is not None]
        if used:
            torch._foreach_mul_([gradient for gradient, _ in used], [k for _, k in used])
    step()
    if learned is not None:
        learned.scoring.project_(learned.scores)
        write_(weights, learned)
    elif kept:
        torch._foreach_mul_(list(weights), list(kept))


def pull_back_(learned: LearnedMask) -> Tensors:
    """Turn gradients of effective weights into those of the scores, straight through the rounding.

    dL/dp = dL/d(effective weight) · w · alive · (slope of rounding and view).
    """
    gradients = [score.grad for score in learned.parameters.values() if score.grad is not None]
    torch._foreach_mul_(gradients, list(learned.live.values()))
    slopes = [learned.scoring.slope(learned.scores)]
    if learned.needs_masks:
        slopes.append(learned.rounding.slope(learned.view, learned.masks))
    for slope in slopes:
        if slope is not None:
            factors = (slope[name] for name in learned.scores)
            torch._foreach_mul_(gradients, all_aligned(factors, learned.scores.values()))
    return dict(zip(learned.scores, gradients, strict=True))


def write_(weights: Sequence[nn.Parameter], learned: LearnedMask) -> None:
    """Round the scores and write the effective weights: w ⊙ alive ⊙ mask."""
    masks = learned.rounding.masks(learned.view, learned.alive, learned.shares, learned.rng)
    if learned.needs_masks:
        learned.masks = masks
    numbers = [
        # Bytes, because torch copies booleans to other types much more slowly on a CPU.
        masks[name].view(torch.uint8) if masks[name].dtype == torch.bool else masks[name]
        for name in learned.scores
    ]
    torch._foreach_copy_(list(weights), all_aligned(numbers, learned.scores.values()))
    torch._foreach_mul_(list(weights), list(learned.live.values()))


class Updater:
    """Carries out updates: one operation after the other, or compiled."""

    def __init__(self, *, compiled: bool = False) -> None:
        self._compiled = torch.compile(update, dynamic=False) if compiled else None

    @torch.no_grad()
    def __call__(
        self,
        weights: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        kept: Sequence[Tensor],
        learned: LearnedMask | None,
    ) -> None:
        """Take a step, after which no gradients are left."""
        if self._compiled is None:
            update(weights, partial(_step, optimizer), kept, learned)
        else:
            # The step itself, without the wrappers in which torch asks not to be compiled.
            step = partial(inspect.unwrap(type(optimizer).step), optimizer)
            self._compiled(weights, step, kept, learned)
            optimizer.zero_grad()


def _step(optimizer: torch.optim.Optimizer) -> None:
    """Take a step, and make room for masks where gradients were."""
    optimizer.step()
    optimizer.zero_grad()
