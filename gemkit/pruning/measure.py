"""Ask scores for importance, and refuse what does not fit or was not measured cleanly."""

import itertools

import torch
from torch import nn

from gemkit.core.errors import ImportanceError
from gemkit.core.probe import Probe
from gemkit.core.tensors import Tensors, seeded
from gemkit.parts.scores import Scores


def measure(scores: Scores, probe: Probe) -> Tensors:
    """Ask for importance, and refuse it where measuring did harm or the answer does not fit."""
    before = _traces(probe.model)
    device = next(iter(probe.weights.values())).device
    with seeded(0, device), torch.enable_grad():
        drawn_from = torch.get_rng_state()
        importance = scores.importance(probe)
        drew = not torch.equal(drawn_from, torch.get_rng_state())
    if changed := [name for name, trace in _traces(probe.model).items() if before[name] != trace]:
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


def _traces(model: nn.Module) -> dict[str, tuple[object, ...]]:
    """Tell, without reading a value, what a change of the model would leave behind."""
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    traces: dict[str, tuple[object, ...]] = {
        name: (tensor._version, tensor.requires_grad, tensor.grad is None)
        for name, tensor in tensors
        if not tensor.is_inference()  # these count no versions
    }
    modes = {f"mode of '{name}'": (module.training,) for name, module in model.named_modules()}
    return {**traces, **modes}


def _checked(scores: Scores, probe: Probe, importance: object) -> Tensors:
    """Return importance in the order of the weights; its keys and shapes must be theirs."""
    if not isinstance(importance, dict):
        raise ImportanceError(
            f"scores '{scores.name}' must return a dict with one tensor per prunable weight, not "
            f"{type(importance).__name__}"
        )
    if set(importance) != set(probe.weights):
        missing = sorted(set(probe.weights) - set(importance))[:3]
        unknown = sorted(str(name) for name in set(importance) - set(probe.weights))[:3]
        raise ImportanceError(
            f"scores '{scores.name}' must return one tensor per prunable weight; "
            f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        )
    for name, weight in probe.weights.items():
        if not isinstance(importance[name], torch.Tensor):
            raise ImportanceError(
                f"scores '{scores.name}' returned something of type "
                f"{type(importance[name]).__name__} for '{name}'; return a tensor"
            )
        if importance[name].shape != weight.shape:
            raise ImportanceError(
                f"scores '{scores.name}' returned shape {tuple(importance[name].shape)} for "
                f"'{name}', whose weight has shape {tuple(weight.shape)}"
            )
    return {name: importance[name].detach() for name in probe.weights}
