"""Fine-tuning and evaluation of tickets."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from lightning_fabric import Fabric
from torch import nn

from gemkit.core.errors import OptionError, TicketError
from gemkit.core.memory import during
from gemkit.core.tensors import Tensors, seeded
from gemkit.data.source import Data
from gemkit.models.check import check_model, own_copy
from gemkit.pruning.masked import MaskedNet
from gemkit.tickets.ticket import Ticket
from gemkit.training.best import Best
from gemkit.training.checkpointer import Checkpointer
from gemkit.training.device import make_fabric, place
from gemkit.training.evaluation import measure
from gemkit.training.labels import check_targets
from gemkit.training.loop import Listener, RunContext, TrainLoop
from gemkit.training.optimizers import check_optimizer
from gemkit.training.plan import Plan, Runtime
from gemkit.training.task import Task
from gemkit.training.trainer import Trainer


@during("fine-tuning")
def finetune(
    ticket: Ticket,
    model: nn.Module,
    data: Data,
    *,
    epochs: int | None = None,
    plan: Plan | None = None,
    seed: int | None = None,
    runtime: Runtime | None = None,
    observers: Sequence[Listener] = (),
    fabric: Fabric | None = None,
    checkpointer: Checkpointer | None = None,
    task: Task | None = None,
) -> Ticket:
    """Train the ticket's weights in a copy of `model`, under the mask.

    With `select="best"` in the plan, the weights of the best epoch are kept. `epochs` overrides
    those of the plan; the seed is the ticket's own unless another is given. The `task` sets what is
    minimized and measured; the ticket records it.
    """
    seed = ticket.info.seed if seed is None else seed
    task = task or _default_task(ticket)
    where = runtime or Runtime()
    context = RunContext(
        "finetune", data, seed, where, observers, fabric, checkpointer, task, ticket.digest
    )
    plan = finetune_plan((plan or Plan()).lasting(epochs))
    with seeded(seed, context.fabric.device):
        own = ticket.apply(own_copy(check_model(model)))
        check_targets(own, data, task)
        net = MaskedNet(place(own, context.fabric, context.runtime), list(ticket.mask))
        net.freeze_(
            {name: mask.to(context.fabric.device) for name, mask in ticket.mask.items()}, {}
        )
        steps = plan.epochs * context.steps_per_epoch(plan)
        trainer = Trainer(net, plan, context.fabric, context.runtime, task.objective)
        best = {"best": Best(net)} if plan.select == "best" else {}
        context.observers = [*context.observers, *best.values()]
        loop = TrainLoop(context, trainer, [range(steps)])
        context.begin(**best, net=net, trainer=trainer, training=loop)
        loop.run_until(steps)
        for one in best.values():
            one.load_()
    weights = {
        name: torch.where(mask, net.effective[name].cpu(), ticket.state[name])
        for name, mask in ticket.mask.items()
    }
    trained = state_of(net, weights)
    changes = {"stage": "finetuned", "objective": None, "metric": None} | task.to_data()
    return replace(ticket, state=trained, info=ticket.info.model_copy(update=changes))


def _default_task(ticket: Ticket) -> Task:
    """Return the default task; refuse a ticket that records another one."""
    if ticket.info.objective is not None or ticket.info.metric is not None:
        raise TicketError(
            "this ticket records an objective or a metric of its own; give it as `task`, or use "
            "gemkit.finetune and gemkit.evaluate, which look it up"
        )
    return Task()


@during("evaluating")
def evaluate(
    ticket: Ticket,
    model: nn.Module,
    data: Data,
    *,
    split: Literal["train", "validation", "test"] = "test",
    runtime: Runtime | None = None,
    fabric: Fabric | None = None,
    task: Task | None = None,
) -> float:
    """Return the metric of the ticket's network on one split of the data."""
    task = task or _default_task(ticket)
    runtime = runtime or Runtime()
    fabric = fabric or make_fabric(runtime)
    own = ticket.apply(own_copy(check_model(model)))
    check_targets(own, data, task, [split])
    own = place(own, fabric, runtime)
    module = fabric.setup_module(own, move_to_device=False)
    return measure(module, getattr(data, split).to(fabric.device), fabric, task, split)


def finetune_plan(plan: Plan, *, score_lr: float | None = None) -> Plan:
    """Fill in the defaults of a plan that trains weights; the paper's weight decay is 1e-4."""
    if score_lr is None:
        refuse_score_lr(plan)
    lr = 0.05 if plan.optimizer == "sgd" else 1e-3
    plan = plan.decided(lr=lr, weight_decay=1e-4, score_lr=score_lr)
    check_optimizer(plan)  # before a long search
    return plan


def refuse_score_lr(plan: Plan) -> None:
    """Refuse a learning rate of scores, unless scores are trained together with weights."""
    if plan.score_lr is not None:
        raise OptionError(
            f"score_lr = {plan.score_lr:g} is for scores that are trained together with weights "
            "(train = 'both'); leave it out, and set lr"
        )


def state_of(net: MaskedNet, weights: Tensors) -> Tensors:
    """Return the state_dict of the model on the CPU, with these weights, not masked, in it.

    A tied weight is replaced under each of its names.
    """
    places = {id(net.parameters[name]): weight for name, weight in weights.items()}
    state = net.model.state_dict(keep_vars=True)
    return on_cpu({name: places.get(id(part), part) for name, part in state.items()})


def on_cpu(tensors: Tensors) -> Tensors:
    """Copy tensors to the CPU, contiguous."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
