"""The one loop: every pruner is a recipe that `search` follows."""

from collections.abc import Callable, Sequence
from importlib.metadata import version

import torch
from lightning_fabric import Fabric
from torch import nn

from gemkit.core.errors import FitError, OptionError, some
from gemkit.core.events import Noted
from gemkit.core.limits import check_seed
from gemkit.core.model_check import check_model, own_copy
from gemkit.core.prunable import frozen_names
from gemkit.core.tensors import Tensors, generator, kept, parameters_of, seeded
from gemkit.data.source import Data
from gemkit.parts.fit import check_fit, needs_training, regrows
from gemkit.parts.now import Now
from gemkit.parts.objective import CrossEntropy
from gemkit.parts.recipe import Recipe
from gemkit.parts.schedule import Freeze
from gemkit.parts.scores import LearnedScores
from gemkit.pruning.feasible import check_shares
from gemkit.pruning.finetune import finetune_plan, on_cpu, refuse_score_lr, state_of
from gemkit.pruning.freeze import Freezer
from gemkit.pruning.guard import Guard
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.rewind import Rewinder, segments
from gemkit.pruning.scope import left_out, names_in_scope
from gemkit.tickets.apply import ties_of
from gemkit.tickets.info import TicketInfo
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpointer import Checkpointer
from gemkit.training.device import place
from gemkit.training.labels import check_targets
from gemkit.training.loop import Listener, RunContext, TrainLoop
from gemkit.training.plan import CollapsePolicy, Plan, Runtime
from gemkit.training.task import Task
from gemkit.training.trainer import Trainer

_SCORE_LR_ADAM = 0.01
_NO_TIME_LEFT = (
    "the last freeze falls on the end of the search, so no score can adapt to it; train longer or "
    "choose another schedule.every"
)
_NOTHING_GROWS = (
    "grow '{}' has no effect: schedule '{}' lets no weight return in a search of this length; "
    "train longer, or lower schedule.every of schedule 'regrow'"
)
_OWN_OBJECTIVE = (
    "the search minimizes objective '{}', which pruner '{}' has of its own; objective '{}' of the "
    "run counts for scores, fine-tuning and evaluation"
)
_NOT_PRUNED = (
    "frozen weights (requires_grad=False) are not pruned: {}; to prune them too, unfreeze them in "
    "the model, or search from Python with prune_frozen=True"
)


def search(
    recipe: Recipe,
    model: nn.Module,
    data: Data,
    *,
    density: float = 0.05,
    plan: Plan | None = None,
    seed: int = 0,
    runtime: Runtime | None = None,
    on_collapse: CollapsePolicy = "error",
    observers: Sequence[Listener] = (),
    fabric: Fabric | None = None,
    on_ticket: Callable[[Ticket], None] | None = None,
    checkpointer: Checkpointer | None = None,
    prune_frozen: bool = False,
    task: Task | None = None,
) -> Ticket:
    """Find a ticket of `density` in a copy of `model`, following the recipe.

    One-shot recipes take no training step; the model itself is left as it was. Where weights are
    trained between freezes, `on_ticket` is called after every freeze, the last one included, with
    the ticket of that density. A `checkpointer` saves the search and resumes it.
    Frozen parameters (`requires_grad=False`) keep their values, and are pruned only with
    `prune_frozen`. The `task` says what scores and training minimize, and what is measured; where
    the recipe has an objective of its own, training minimizes that.
    """
    check_seed(seed)
    model = check_model(model)
    context = RunContext(
        "search", data, seed, runtime or Runtime(), observers, fabric, checkpointer, task
    )
    _check_objective(recipe, context)
    plan = search_plan(recipe, plan or Plan(), data)
    target = recipe.density or density
    per_epoch = context.steps_per_epoch(plan)
    check_fit(recipe, epochs=plan.epochs, density=target, steps_per_epoch=per_epoch)
    with seeded(seed, context.fabric.device):
        freezes = recipe.schedule.freezes(target, plan.epochs, per_epoch)
        parts = segments(recipe.rewind, freezes, plan.epochs * per_epoch, per_epoch)
        net = _prepare(recipe, model, context, prune_frozen, sum(map(len, parts)), target)
        check_shares(recipe, net.effective, net.alive, target, on_collapse)
        guard = Guard(recipe, net, context, plan, on_collapse)
        guard.check_start(freezes)
        objective = recipe.objective or context.task.objective
        trainer = Trainer(net, plan, context.fabric, context.runtime, objective)
        freezer = Freezer(recipe, trainer, context, guard)
        learns = isinstance(recipe.scores, LearnedScores)
        if learns and not parts[-1] and not recipe.rounding.soft:
            context.emit(Noted(_NO_TIME_LEFT))
        if objective != context.task.objective != CrossEntropy():
            names = objective.name, recipe.pruner, context.task.objective.name
            context.emit(Noted(_OWN_OBJECTIVE.format(*names)))
        if not prune_frozen and (left := frozen_names(model)):
            context.emit(Noted(_NOT_PRUNED.format(some(left, most=3))))
        if sentence := left_out(recipe, model, list(net.parameters), frozen=prune_frozen):
            context.emit(Noted(sentence))
        if recipe.grow is not None and not regrows(freezes):
            context.emit(Noted(_NOTHING_GROWS.format(recipe.grow.name, recipe.schedule.name)))
        loop = TrainLoop(context, trainer, parts)
        rewinder = Rewinder(recipe.rewind, net, loop)
        context.begin(net=net, trainer=trainer, training=loop, freezer=freezer, rewinder=rewinder)
        rewinder.take_snapshot()
        for planned in freezes[len(freezer.history) :]:
            loop.run_until(planned.step)
            if loop.stopped and (planned is not freezes[-1] or freezer.is_at(target)):
                continue  # straight to the target: nothing trains or rewinds in between
            freezer.freeze(loop.steps, planned)
            rewinder.rewind_()
            if on_ticket and recipe.schedule.trains and not learns and recipe.grow is None:
                level = _ticket(recipe, loop, freezer, net.mask, planned.density, prune_frozen)
                done = freezes[: len(freezer.history)]
                partway = loop.ended_early or not _ends_with(done, recipe, loop)
                on_ticket(level.with_info(partway=partway))
            context.checkpointer.maybe_save()
        if parts[-1]:
            loop.run_until(parts[-1].stop)
        mask = freezer.final_mask(loop.steps, target)
    return _ticket(recipe, loop, freezer, mask, target, prune_frozen)


def search_plan(recipe: Recipe, plan: Plan, data: Data) -> Plan:
    """Decide what the plan leaves open: optimizer, learning rate, and the length of a round.

    One-shot recipes do not train at all, and a schedule may set the length of its rounds.
    """
    if plan.select != "last":
        raise OptionError("search.select = 'best': a search keeps its last mask; leave it out")
    scores = recipe.scores
    if isinstance(scores, LearnedScores) and "optimizer" not in plan.model_fields_set:
        plan = plan.model_copy(update={"optimizer": scores.default_optimizer})
    plan = plan.lasting(recipe.schedule.round_epochs if needs_training(recipe) else 0)
    if not isinstance(scores, LearnedScores):
        return finetune_plan(plan)
    lr = _score_lr(scores, plan, plan.epochs * data.train.steps(plan.batch_size))
    if recipe.trained == "both":
        return finetune_plan(plan, score_lr=lr)
    refuse_score_lr(plan)
    return plan.decided(lr=lr, weight_decay=scores.default_weight_decay)


def _score_lr(scores: LearnedScores, plan: Plan, steps: int) -> float:
    """Return the default learning rate of scores for the optimizer of a plan."""
    if plan.optimizer == scores.default_optimizer:
        return scores.default_lr(steps)
    return LearnedScores.default_lr(scores, steps) if plan.optimizer == "sgd" else _SCORE_LR_ADAM


def _check_objective(recipe: Recipe, context: RunContext) -> None:
    """Refuse a recipe whose own objective is not for the targets of the task."""
    own, targets = recipe.objective, context.task.objective.targets
    if own is not None and own.targets not in ("any", targets) and targets != "any":
        raise FitError(
            f"pruner '{recipe.pruner}': its search minimizes '{own.name}', which is for "
            f"{own.targets}, but the targets of objective '{context.task.objective.name}' are "
            f"{targets}; choose another pruner, or leave the recipe's objective out"
        )


def _prepare(
    recipe: Recipe,
    model: nn.Module,
    context: RunContext,
    prune_frozen: bool,
    steps: int,
    target: float,
) -> MaskedNet:
    """Copy the model, draw its starting weights unless they are frozen, and put it under a mask."""
    own = own_copy(model)
    parameters = parameters_of(own, names := names_in_scope(recipe, own, frozen=prune_frozen))
    weights = {name: weight.detach() for name, weight in parameters.items() if weight.requires_grad}
    drawn = recipe.init.draw(weights, generator(context.seed, "weights"))
    for name, weight in list(weights.items()):
        weight.copy_(drawn.pop(name))  # one copy less in memory, layer by layer
    check_targets(own, context.data, context.task)
    own = place(own, context.fabric, context.runtime)
    if isinstance(recipe.scores, LearnedScores):
        rng = generator(context.seed, "scores")
        return MaskedNet.learning(own, names, recipe, rng, steps=steps, target=target)
    return MaskedNet(own, names, now=Now(steps=steps, target=target))


def _ends_with(freezes: list[Freeze], recipe: Recipe, loop: TrainLoop) -> bool:
    """Tell whether a search to the density of the last of these freezes consists of just these."""
    epochs, per_epoch = loop.trainer.plan.epochs, loop.steps_per_epoch
    aim = freezes[-1].density
    if recipe.density not in (None, aim):
        return False
    if segments(recipe.rewind, freezes, epochs * per_epoch, per_epoch)[-1]:
        return False  # it would train on after the last one
    return recipe.schedule.freezes(aim, epochs, per_epoch) == freezes


def _ticket(
    recipe: Recipe,
    loop: TrainLoop,
    freezer: Freezer,
    mask: Tensors,
    density: float,
    prune_frozen: bool,
) -> Ticket:
    """Take the ticket out of a search as it stands."""
    net, context = freezer.net, loop.context
    info = TicketInfo(
        pruner=recipe.pruner,
        recipe=recipe.to_data(),
        model=None,
        dataset=None,
        shape=context.data.shape,
        classes=context.data.classes,
        density_target=density,
        seed=context.seed,
        epochs=round(loop.steps / loop.steps_per_epoch),
        plan=loop.trainer.plan,
        stage="found",
        versions={"gemkit": version("gemkit"), "torch": torch.__version__},
        history=freezer.history,
        alive=kept(net.alive),
        partway=loop.ended_early,
        on_collapse=freezer.guard.on_collapse,
        prune_frozen=prune_frozen,
        tied=ties_of(net.model.state_dict(keep_vars=True)),
        **context.task.to_data(),
    )
    return Ticket(mask=on_cpu(mask), state=state_of(net, net.weights), info=info)
