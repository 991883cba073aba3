"""Optimizers: those of torch and timm, and functions that make one."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gemkit.core.errors import OptionError, did_you_mean
from gemkit.core.text import text_of
from gemkit.training.optimizer_contract import broken_rule
from gemkit.training.optimizer_names import NATIVE
from gemkit.training.optimizer_state import parameters_in
from gemkit.training.plan import NOT_OPTIONS, Plan

FUSED = {"cpu", "cuda", "mps"}
"""Kinds of devices for which torch has fused optimizers."""

Groups = list[dict[str, Any]]
"""Parameter groups of torch's optimizers: `params`, and settings of their own."""


def make_optimizer(
    plan: Plan,
    parameters: Sequence[nn.Parameter] | Sequence[Mapping[str, Any]],
    *,
    compiled: bool = False,
) -> torch.optim.Optimizer:
    """Make the optimizer of a plan.

    Args:
        plan: names the optimizer, or has a function that makes it. A function, or options that the
            plan adds, are tried first, and refused if the optimizer breaks a rule.
        parameters: what to train, or groups of it: `{"params": [...], "lr": ..., "weight_decay":
            ...}`, where a group without a rate of its own takes the plan's.
        compiled: use torch's own without fused kernels, with the learning rate in a tensor: a
            number would be compiled again whenever it changes.
    """
    assert not compiled or can_compile(plan)
    plan.check_functions()
    groups: Groups = [dict(one) for one in parameters if isinstance(one, Mapping)]
    if not groups:  # torch takes no empty list of parameters otherwise
        groups = [{"params": list(parameters)}]
    if plan.optimizer_options or not isinstance(plan.optimizer, str):
        _try(plan, groups)
    optimizer = _make(plan, groups, plan.weight_decay or 0.0, compiled=compiled)
    if plan.clip_grad is not None:
        optimizer.register_step_pre_hook(partial(_clip, plan.clip_grad))
    if isinstance(optimizer, torch.optim.SGD) and not compiled:
        optimizer.register_step_pre_hook(_start_late_momentum)
    return optimizer


def can_compile(plan: Plan) -> bool:
    """Whether the optimizer can be compiled with the update; hooks, as for clipping, cannot."""
    return plan.optimizer in NATIVE and plan.clip_grad is None


def check_optimizer(plan: Plan) -> None:
    """Refuse a plan whose optimizer cannot be made, before anything is trained."""
    make_optimizer(plan, [nn.Parameter(torch.zeros(1))])


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate; groups with a rate of their own keep its ratio to the plan's.

    A tensor, which a compiled update reads, is set in place.
    """
    for group in optimizer.param_groups:
        own = lr * group["lr_scale"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


# --- making --------------------------------------------------------------------------------------


def _try(plan: Plan, groups: Groups) -> None:
    """Refuse an optimizer that breaks a rule of the contract."""
    first = next((one for group in groups for one in group["params"]), torch.empty(()))
    rule = broken_rule(lambda own, decay: _make(plan, [{"params": own}], decay), first.device)
    if rule is not None:
        raise OptionError(
            f"optimizer {_title(plan)} cannot be used: {rule}; take another, such as 'sgd', "
            "'adamw' or 'lion'"
        )


def _make(
    plan: Plan, groups: Groups, decay: float, *, compiled: bool = False
) -> torch.optim.Optimizer:
    """Make the optimizer, and check that it is one."""
    assert plan.lr is not None
    given = [one for group in groups for one in group["params"]]
    try:
        optimizer = _maker(plan, given, compiled)([*groups], lr=plan.lr, weight_decay=decay)
    except Exception as error:  # a function, or options, from elsewhere
        reason = str(error).partition("\n")[0] or type(error).__name__
        way_out = "check optimizer_options, and whether timm is too old for it"
        raise OptionError(
            f"optimizer {_title(plan)} cannot be made: {reason}"
            + (f"; {way_out}" if isinstance(plan.optimizer, str) else "")
        ) from error
    _check(plan, optimizer, given)
    for group in optimizer.param_groups:
        group["lr_scale"] = float(group["lr"]) / plan.lr  # timm's word for it
        if compiled:
            like = given[0] if given else torch.empty(())
            group["lr"] = like.new_tensor(group["lr"])
    if compiled:  # torch cannot trace two groups whose states do not exist yet
        for parameter in given:
            optimizer.state[parameter] = {}
    return optimizer


def _maker(
    plan: Plan, parameters: Sequence[nn.Parameter], compiled: bool
) -> Callable[..., torch.optim.Optimizer]:
    """Return a function that makes the optimizer from groups, learning rate and weight decay."""
    if not isinstance(plan.optimizer, str):
        return plan.optimizer
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in plan.optimizer_options.items()
    }
    if plan.optimizer not in NATIVE:
        from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]

        return partial(create_optimizer_v2, opt=plan.optimizer, momentum=plan.momentum, **options)
    fused = all(map(_has_fused_kernels, parameters))
    own: dict[str, Any] = {"foreach": True} if compiled else {"fused": fused}
    if plan.optimizer == "sgd":
        own |= {"momentum": plan.momentum, "nesterov": plan.nesterov}
        return partial(torch.optim.SGD, **own | options)
    rule = torch.optim.Adam if plan.optimizer == "adam" else torch.optim.AdamW
    own |= {"betas": (plan.momentum, 0.999), "capturable": compiled}
    return partial(rule, **own | options)


def _check(plan: Plan, optimizer: object, given: Sequence[nn.Parameter]) -> None:
    """Refuse anything but an optimizer of these parameters that follows the plan."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptionError(
            f"optimizer {_title(plan)} returns {type(optimizer).__name__}; it must return a "
            "torch.optim.Optimizer"
        )
    if set(map(id, parameters_in(optimizer))) != set(map(id, given)):
        raise OptionError(
            f"optimizer {_title(plan)} trains other parameters than it is given; pass on all of "
            "`params`"
        )
    if any("lr" not in group for group in optimizer.param_groups):
        raise OptionError(f"optimizer {_title(plan)} has no learning rate to set; take another")
    _check_settings(plan, optimizer.defaults)


def _check_settings(plan: Plan, known: Mapping[str, object]) -> None:
    """Refuse settings of a plan that its optimizer would ignore; `known` are its settings."""
    title, named = _title(plan), isinstance(plan.optimizer, str)
    for name in plan.optimizer_options:
        if name not in known:
            raise OptionError(
                f"optimizer_options.{name}: optimizer {title} has no such option"
                + did_you_mean(name, known.keys() - NOT_OPTIONS)
            )
    if plan.optimizer in NATIVE:
        return
    taken = {"momentum"} if named and "momentum" in known else set()
    for name in sorted({"momentum", "nesterov"} - taken):
        if getattr(plan, name) != Plan.model_fields[name].default:
            raise OptionError(
                f"optimizer {title} ignores {name}; leave it out"
                + (", and see optimizer_options" if named else " and set it in the function")
            )


def _title(plan: Plan) -> str:
    """Name the optimizer in a message."""
    return repr(text_of(plan.optimizer))


def _has_fused_kernels(parameter: nn.Parameter) -> bool:
    """Whether torch's fused optimizers take this parameter, and update all of it.

    On a CPU they ignore gaps in memory and, before torch 2.14, skip most of a half-precision one.
    """
    dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    wide = parameter.device.type != "cpu" or parameter.dtype in {torch.float32, torch.float64}
    return dense and wide and parameter.device.type in FUSED and parameter.is_floating_point()


def _clip(most: float, optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Scale all gradients so that their norm is at most this, without waiting for the device."""
    torch.nn.utils.clip_grad_norm_(parameters_in(optimizer), most, error_if_nonfinite=False)


def _start_late_momentum(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Start the momentum of parameters whose first gradient comes after that of others.

    torch's fused SGD starts all in one step or none. Momentum starts as the first gradient g, with
    weight decay, so the buffer b before that step solves momentum · b + (1 − dampening) · g = g.
    """
    for group in optimizer.param_groups:
        if not (group["fused"] and group["momentum"]):
            continue
        given = [parameter for parameter in group["params"] if parameter.grad is not None]
        late = [one for one in given if not optimizer.state.get(one)]
        if 0 < len(late) < len(given):
            for parameter in late:
                first = -parameter.grad if group["maximize"] else parameter.grad
                first = first.add(parameter.detach(), alpha=group["weight_decay"])
                before = first.mul_(group["dampening"] / group["momentum"])
                optimizer.state[parameter] = {"momentum_buffer": before}
