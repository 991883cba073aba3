"""Measure importance, and refuse scores that change the model or do not fit it."""

import itertools

import torch
from torch import nn

from gemkit.core.errors import ImportanceError
from gemkit.core.memory import during
from gemkit.core.probe import Probe
from gemkit.core.tensors import Tensors, seeded
from gemkit.parts.scores import Scores


@during("scoring")
def measure(scores: Scores, probe: Probe) -> Tensors:
    """Return the importance of all weights; refuse scores that change the model or do not fit it.

    Global random numbers are refused too: no seed determines them.
    """
    before = _versions(probe.model)
    device = next(iter(probe.weights.values())).device
    with seeded(0, device), torch.enable_grad():
        drawn_from = torch.get_rng_state()
        importance = scores.importance(probe)
        drew = not torch.equal(drawn_from, torch.get_rng_state())
    if changed := [name for name, now in _versions(probe.model).items() if before[name] != now]:
        raise ImportanceError(
            f"scores '{scores.name}' changed the model they measure ({', '.join(changed[:3])}); "
            "work on probe.weights, which are copies, and through probe.forward"
        )
    if drew:
        raise ImportanceError(
            f"scores '{scores.name}' drew global random numbers, which no seed decides; draw from "
            "probe.rng"
        )
    return _checked(scores, probe, importance)


def _versions(model: nn.Module) -> dict[str, tuple[object, ...]]:
    """Return what changes with the model, without reading a value from the device."""
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    versions: dict[str, tuple[object, ...]] = {
        name: (tensor._version, tensor.requires_grad, tensor.grad is None)
        for name, tensor in tensors
        if not tensor.is_inference()  # these have no version
    }
    modes = {f"mode of '{name}'": (module.training,) for name, module in model.named_modules()}
    return {**versions, **modes}


def _checked(scores: Scores, probe: Probe, importance: object) -> Tensors:
    """Return importance in the order of the weights; names and shapes must be theirs."""
    title = f"scores '{scores.name}'"
    if not isinstance(importance, dict):
        raise ImportanceError(
            f"{title} must return a dict with one tensor per prunable weight, not "
            f"{type(importance).__name__}"
        )
    if set(importance) != set(probe.weights):
        missing = sorted(set(probe.weights) - set(importance))[:3]
        unknown = sorted(str(name) for name in set(importance) - set(probe.weights))[:3]
        raise ImportanceError(
            f"{title} must return one tensor per prunable weight; "
            f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        )
    for name, weight in probe.weights.items():
        found = importance[name]
        if not isinstance(found, torch.Tensor):
            raise ImportanceError(
                f"{title} returned something of type {type(found).__name__} for '{name}'; return "
                "a tensor"
            )
        if found.shape != weight.shape:
            raise ImportanceError(
                f"{title} returned shape {tuple(found.shape)} for '{name}', whose weight has shape "
                f"{tuple(weight.shape)}"
            )
    return {name: importance[name].detach() for name in probe.weights}
