"""Update rules: torch's own optimizers, fused, or in plain operations where they are compiled."""

import torch
from torch import Tensor, nn

from gemkit.plan import Plan

FUSED = {"cpu", "cuda", "mps"}
"""Kinds of devices for which torch has optimizers that take one kernel a step."""


def make_optimizer(
    plan: Plan, parameters: list[nn.Parameter], *, compiled: bool = False
) -> torch.optim.Optimizer:
    """Build the update rule, fused where torch offers it for these tensors.

    To be compiled, it is written in plain operations, and its learning rate is a tensor, because
    another number would mean another graph.
    """
    assert plan.lr is not None
    groups = [{"params": parameters}]  # torch takes no empty list of parameters otherwise
    lr: float | Tensor = plan.lr
    kernels: dict[str, bool] = {"fused": all(map(_has_fused_kernels, parameters))}
    if compiled:
        like = parameters[0] if parameters else torch.empty(())
        lr = like.new_tensor(plan.lr)
        kernels = {"foreach": True}
    if plan.optimizer == "sgd":
        return torch.optim.SGD(
            groups,
            lr=lr,
            momentum=plan.momentum,
            nesterov=plan.nesterov,
            weight_decay=plan.weight_decay or 0.0,
            **kernels,
        )
    rule = torch.optim.Adam if plan.optimizer == "adam" else torch.optim.AdamW
    return rule(
        groups,
        lr=lr,
        betas=(plan.momentum, 0.999),
        weight_decay=plan.weight_decay or 0.0,
        capturable=compiled,
        **kernels,
    )


def _has_fused_kernels(parameter: nn.Parameter) -> bool:
    """Whether torch's fused optimizers take this parameter, and update all of it.

    On a CPU they ignore gaps in memory and, before torch 2.14, skip most of a half-precision one.
    """
    dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    wide = parameter.device.type != "cpu" or parameter.dtype in {torch.float32, torch.float64}
    return dense and wide and parameter.device.type in FUSED and parameter.is_floating_point()


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate, in place where it is a tensor that a compiled update reads."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
