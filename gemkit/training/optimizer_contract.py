"""The contract of optimizers, checked on small tensors.

A network under a mask holds zeros where weights are pruned, and masks, projections and rewinding
write into the weights between steps. So the step of a weight may depend only on that weight and
its own gradients, and a zero without a gradient stays zero. A resumed run ends with the same bits.
"""

import copy
import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from gemkit.core.errors import CheckpointError, OptionError
from gemkit.core.state import StateDict
from gemkit.training.optimizer_state import load_state_, state_of

Make = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]
"""Makes an optimizer for these parameters, with this weight decay."""

After = Callable[[int, torch.optim.Optimizer, list[nn.Parameter]], None]
"""Called after every step with its number, from 0."""

_SHAPES = [(24,), (24, 40), (4, 6, 3, 3)]
"""A bias, a matrix and a kernel; some optimizers treat large matrices differently."""
_STEPS = 8
_DECAY = 0.1
_PRUNED = slice(0, 2)


def broken_rule(make: Make, device: torch.device | str = "cpu") -> str | None:
    """Return the rule of the contract that an optimizer breaks, or None."""
    try:
        trial = _Trial(make, torch.device(device))
        return next((rule for rule, is_broken in RULES.items() if is_broken(trial)), None)
    except OptionError:  # it cannot be made
        raise
    except Exception as error:  # an optimizer from elsewhere can fail in any way
        reason = str(error).partition("\n")[0] or type(error).__name__
        return f"a trial step failed: {reason}"


class _Trial:
    """An optimizer, and weights and gradients to test it with."""

    def __init__(self, make: Make, device: torch.device) -> None:
        self.make = make
        self.device = device
        rng = torch.Generator().manual_seed(0)
        self.starts = [torch.randn(shape, generator=rng).to(device) for shape in _SHAPES]
        self.gradients = [
            torch.randn(_STEPS, *shape, generator=rng).to(device) for shape in _SHAPES
        ]
        self.others = [torch.randn(_STEPS, *shape, generator=rng).to(device) for shape in _SHAPES]

    def run(
        self,
        starts: Sequence[Tensor] | None = None,
        gradients: Sequence[Tensor] | None = None,
        *,
        decay: float = _DECAY,
        after: After = lambda step, optimizer, parameters: None,
    ) -> list[Tensor]:
        """Take all steps from these weights with these gradients; return the final weights."""
        parameters = [nn.Parameter(start.clone()) for start in starts or self.starts]
        optimizer = self.make(parameters, decay)
        for step in range(_STEPS):
            _step(optimizer, parameters, [one[step] for one in gradients or self.gradients])
            after(step, optimizer, parameters)
        return [parameter.detach() for parameter in parameters]


def _step(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    gradients: Sequence[Tensor],
) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()


# --- the rules: each returns whether it is broken ------------------------------------------------


def _draws_random_numbers(trial: _Trial) -> bool:
    before = _random_numbers(trial.device)
    trial.run()
    return _random_numbers(trial.device) != before


def _random_numbers(device: torch.device) -> list[object]:
    """Return the state of all global random numbers."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    own = [random.getstate(), repr(np.random.get_state())]
    return [*own, *(state.tolist() for state in states)]


def _has_other_state(trial: _Trial) -> bool:
    found: list[bool] = []

    def inspect(
        step: int, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]
    ) -> None:
        own = set(map(id, parameters))
        for key, values in optimizer.state.items():
            found.append(id(key) in own and all(_is_plain(key, one) for one in values.values()))

    trial.run(after=inspect)
    return not all(found)


def _is_plain(parameter: Tensor, value: object) -> bool:
    """Whether a value is a tensor like the parameter, a tensor of one number, a number or None."""
    if isinstance(value, Tensor):
        return value.shape in (parameter.shape, ()) and value.layout is torch.strided
    return value is None or isinstance(value, bool | int | float)


def _couples_weights(trial: _Trial) -> bool:
    expected = trial.run()
    for at, shape in enumerate(_SHAPES):
        half = shape[0] // 2
        gradients = [one.clone() for one in trial.gradients]
        gradients[at][:, half:] = trial.others[at][:, half:]
        found = trial.run(gradients=gradients)
        found[at], same = found[at][:half], [*expected]
        same[at] = same[at][:half]
        if not _equal(found, same):
            return True
    starts = [part for one in trial.starts for part in one.chunk(2)]
    halves = trial.run(starts, [part for one in trial.gradients for part in one.chunk(2, dim=1)])
    whole = [part for one in expected for part in one.chunk(2)]
    return not all(
        torch.allclose(one, other, rtol=1e-4, atol=1e-5)
        for one, other in zip(halves, whole, strict=True)
    )


def _moves_pruned_weights(trial: _Trial) -> bool:
    gradients = [one.clone() for one in trial.gradients]
    zeroed = [one.clone() for one in trial.starts]
    for gradient, weight in zip(gradients, zeroed, strict=True):
        gradient[:, _PRUNED] = 0
        weight[_PRUNED] = 0

    def prune(step: int, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters if step == 2 else ():
            for own in (parameter.detach(), *optimizer.state[parameter].values()):
                if isinstance(own, Tensor) and own.shape == parameter.shape:
                    own[_PRUNED] = 0

    late = [
        torch.cat([one[:3], own[3:]]) for one, own in zip(trial.gradients, gradients, strict=True)
    ]
    runs = [
        (zeroed, trial.run(zeroed, gradients)),
        (zeroed, trial.run(gradients=late, after=prune)),
        (trial.starts, trial.run(gradients=gradients, decay=0.0)),  # decay moves what is not zero
    ]
    return not all(
        _equal([one[_PRUNED] for one in found], [one[_PRUNED] for one in expected])
        for expected, found in runs
    )


def _ignores_writes(trial: _Trial) -> bool:
    """Without decay, weights that are increased by 1 between two steps end 1 higher."""

    def move(step: int, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters if step == 2 else ():
            parameter.detach().add_(1)

    moved, still = trial.run(decay=0.0, after=move), trial.run(decay=0.0)
    return not all(
        torch.allclose(one - 1, other, atol=1e-5) for one, other in zip(moved, still, strict=True)
    )


def _resumes_elsewhere(trial: _Trial) -> bool:
    return any(not _equal(_resumed(trial, step), trial.run()) for step in (0, 3))


def _resumed(trial: _Trial, last: int) -> list[Tensor]:
    """Take the steps up to `last`, and the rest with an optimizer that loads the saved state."""
    weights: list[nn.Parameter] = []
    saved: StateDict = {}

    def save(step: int, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        if step == last:
            weights.extend(nn.Parameter(one.detach().clone()) for one in parameters)
            saved.update(copy.deepcopy(state_of(optimizer)))

    trial.run(after=save)
    optimizer = trial.make(weights, _DECAY)
    try:
        load_state_(optimizer, saved, lambda parameters: trial.make(parameters, _DECAY))
    except CheckpointError:  # such as state that only the first step or a later one creates
        return trial.starts
    for step in range(last + 1, _STEPS):
        _step(optimizer, weights, [one[step] for one in trial.gradients])
    return [weight.detach() for weight in weights]


def _equal(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether all bits are equal."""
    return all(torch.equal(one, other) for one, other in zip(tensors, others, strict=True))


RULES: dict[str, Callable[[_Trial], bool]] = {
    "it draws global random numbers": _draws_random_numbers,
    "its state holds more than tensors and numbers of each weight": _has_other_state,
    "the step of a weight depends on other weights": _couples_weights,
    "it moves weights that have no gradient": _moves_pruned_weights,
    "it ignores what is written into the weights between two steps": _ignores_writes,
    "with its state saved and loaded, it does not take the same steps": _resumes_elsewhere,
}
