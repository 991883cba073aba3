"""The search: one loop that follows the recipe of any pruner."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import torch
from lightning_fabric import Fabric
from torch import nn

from gemkit.core.errors import OptionError, some
from gemkit.core.events import Noted
from gemkit.core.limits import check_seed
from gemkit.core.memory import during
from gemkit.core.prunable import frozen_names
from gemkit.core.tensors import Tensors, generator, kept, parameters_of, seeded
from gemkit.data.source import Data
from gemkit.models.check import check_model, own_copy
from gemkit.parts.fit import check_fit, needs_training, regrows, unsettled
from gemkit.parts.now import Now
from gemkit.parts.objective import CrossEntropy
from gemkit.parts.recipe import Recipe
from gemkit.parts.schedule import Freeze
from gemkit.parts.scores import LearnedScores
from gemkit.pruning.feasible import check_objective, check_shares
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


@during("searching")
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

    One-shot recipes take no training step. If weights are trained between freezes, `on_ticket` is
    called after every freeze, the last one included, with the ticket of that density. A
    `checkpointer` saves the search and resumes it. Frozen parameters (`requires_grad=False`) keep
    their values, and are pruned only with `prune_frozen`. The `task` sets what scores and training
    minimize, and what is measured; a recipe with an objective of its own trains by that.
    """
    check_seed(seed)
    model, runtime = check_model(model), runtime or Runtime()
    context = RunContext("search", data, seed, runtime, observers, fabric, checkpointer, task)
    check_objective(recipe, context.task)
    plan = search_plan(recipe, plan or Plan(), data)
    target = recipe.density or density
    per_epoch = context.steps_per_epoch(plan)
    check_fit(recipe, epochs=plan.epochs, density=target, steps_per_epoch=per_epoch)
    with seeded(seed, context.fabric.device):
        freezes = recipe.schedule.freezes(target, plan.epochs, per_epoch)
        clock = segments(recipe.rewind, freezes, plan.epochs * per_epoch, per_epoch)
        net = _masked(recipe, model, context, prune_frozen, sum(map(len, clock)), target)
        check_shares(recipe, net.effective, net.alive, target, on_collapse)
        guard = Guard(recipe, net, context, plan, on_collapse)
        guard.check_start(freezes)
        objective = recipe.objective or context.task.objective
        trainer = Trainer(net, plan, context.fabric, runtime, objective)
        for note in _notes(recipe, model, net, context.task, freezes, clock, prune_frozen):
            context.emit(Noted(note))
        loop = TrainLoop(context, trainer, clock)
        freezer = Freezer(recipe, net, trainer, context, on_collapse, len(freezes))
        rewinder = Rewinder(recipe.rewind, net, loop)
        context.begin(net=net, trainer=trainer, training=loop, freezer=freezer, rewinder=rewinder)
        state = _Search(recipe, target, freezes, loop, freezer, guard, rewinder, prune_frozen)
        mask = state.find_mask(clock[-1], on_ticket)
    return state.ticket(mask, target)


@dataclass(frozen=True)
class _Search:
    """A search under way."""

    recipe: Recipe
    target: float
    freezes: list[Freeze]
    loop: TrainLoop
    freezer: Freezer
    guard: Guard
    rewinder: Rewinder
    prune_frozen: bool

    def find_mask(self, last: range, on_ticket: Callable[[Ticket], None] | None) -> Tensors:
        """Train until a freeze, freeze and rewind, in turn; then train the `last` segment."""
        recipe, loop, freezer = self.recipe, self.loop, self.freezer
        learns = isinstance(recipe.scores, LearnedScores)
        if learns or not recipe.schedule.trains or recipe.grow is not None:
            on_ticket = None
        self.rewinder.take_snapshot()
        for planned in self.freezes[len(freezer.history) :]:
            loop.run_until(planned.step)
            if loop.stopped and (planned is not self.freezes[-1] or freezer.is_at(self.target)):
                continue  # straight to the target: nothing trains or rewinds in between
            mask = freezer.freeze(loop.steps, planned)
            self.guard.check_freeze(loop.steps, mask)
            self.rewinder.rewind_()
            if on_ticket is not None:
                partway = loop.ended_early or not self._could_end_here()
                level = self.ticket(freezer.net.mask, planned.density)
                on_ticket(level.with_info(partway=partway))
            loop.context.checkpointer.maybe_save()
        if last:
            loop.run_until(last.stop)
        mask = freezer.final_mask(self.target)
        self.guard.check_ticket(loop.steps, mask, self.target)
        return mask

    def _could_end_here(self) -> bool:
        """Whether a search to the density of the last freeze would end with it."""
        recipe, plan, per_epoch = self.recipe, self.loop.trainer.plan, self.loop.steps_per_epoch
        done = self.freezes[: len(self.freezer.history)]
        density = done[-1].density
        if recipe.density not in (None, density):
            return False
        if segments(recipe.rewind, done, plan.epochs * per_epoch, per_epoch)[-1]:
            return False  # it would train after its last freeze
        return recipe.schedule.freezes(density, plan.epochs, per_epoch) == done

    def ticket(self, mask: Tensors, density: float) -> Ticket:
        """Make a ticket of a mask and the current weights."""
        net, loop, context = self.freezer.net, self.loop, self.loop.context
        info = TicketInfo(
            pruner=self.recipe.pruner,
            recipe=self.recipe.to_data(),
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
            history=self.freezer.history,
            alive=kept(net.alive),
            partway=loop.ended_early,
            on_collapse=self.guard.on_collapse,
            prune_frozen=self.prune_frozen,
            tied=ties_of(net.model.state_dict(keep_vars=True)),
            **context.task.to_data(),
        )
        return Ticket(mask=on_cpu(mask), state=state_of(net, net.weights), info=info)


def _masked(
    recipe: Recipe,
    model: nn.Module,
    context: RunContext,
    prune_frozen: bool,
    steps: int,
    target: float,
) -> MaskedNet:
    """Copy the model, draw its initial weights unless they are frozen, and put it under a mask."""
    own = own_copy(model)
    parameters = parameters_of(own, names := names_in_scope(recipe, own, frozen=prune_frozen))
    weights = {name: weight.detach() for name, weight in parameters.items() if weight.requires_grad}
    drawn = recipe.init.draw(weights, generator(context.seed, "weights"))
    for name, weight in list(weights.items()):
        weight.copy_(drawn.pop(name))  # frees memory layer by layer
    check_targets(own, context.data, context.task)
    own = place(own, context.fabric, context.runtime)
    if isinstance(recipe.scores, LearnedScores):
        rng = generator(context.seed, "scores")
        return MaskedNet.learning(own, names, recipe, rng, steps=steps, target=target)
    return MaskedNet(own, names, now=Now(steps=steps, target=target))


def search_plan(recipe: Recipe, plan: Plan, data: Data) -> Plan:
    """Fill in what the plan leaves open: optimizer, learning rate, and the length of a round.

    One-shot recipes do not train, and a schedule may set the length of its rounds.
    """
    if plan.select != "last":
        raise OptionError("search.select = 'best': a search keeps its last mask; leave it out")
    scores, plan = recipe.scores, plan_without_rates(recipe, plan)
    if not isinstance(scores, LearnedScores):
        return finetune_plan(plan)
    lr = _score_lr(scores, plan, plan.epochs * data.train.steps(plan.batch_size))
    if recipe.trained == "both":
        return finetune_plan(plan, score_lr=lr)
    refuse_score_lr(plan)
    return plan.decided(lr=lr, weight_decay=scores.default_weight_decay)


def plan_without_rates(recipe: Recipe, plan: Plan) -> Plan:
    """Decide optimizer and length, which do not depend on the data."""
    if isinstance(recipe.scores, LearnedScores) and "optimizer" not in plan.model_fields_set:
        plan = plan.model_copy(update={"optimizer": recipe.scores.default_optimizer})
    return plan.lasting(recipe.schedule.round_epochs if needs_training(recipe) else 0)


def _score_lr(scores: LearnedScores, plan: Plan, steps: int) -> float:
    """Return the default learning rate of scores for the optimizer of a plan."""
    if plan.optimizer == scores.default_optimizer:
        return scores.default_lr(steps)
    return LearnedScores.default_lr(scores, steps) if plan.optimizer == "sgd" else _SCORE_LR_ADAM


def _notes(
    recipe: Recipe,
    model: nn.Module,
    net: MaskedNet,
    task: Task,
    freezes: list[Freeze],
    clock: Sequence[range],
    prune_frozen: bool,
) -> Iterator[str]:
    """Yield what a user should know about a search before it starts."""
    own = recipe.objective
    if note := unsettled(recipe, freezes, clock[-1].stop):
        yield note
    if own is not None and own != task.objective != CrossEntropy():
        yield (
            f"the search minimizes objective '{own.name}', which pruner '{recipe.pruner}' has of "
            f"its own; objective '{task.objective.name}' of the run counts for scores, fine-tuning "
            "and evaluation"
        )
    if not prune_frozen and (frozen := frozen_names(model)):
        yield (
            f"frozen weights (requires_grad=False) are not pruned: {some(frozen, most=3)}; to "
            "prune them too, unfreeze them in the model, or search from Python with "
            "prune_frozen=True"
        )
    if sentence := left_out(recipe, model, list(net.parameters), frozen=prune_frozen):
        yield sentence
    if recipe.grow is not None and not regrows(freezes):
        yield (
            f"grow '{recipe.grow.name}' has no effect: schedule '{recipe.schedule.name}' lets no "
            "weight return in a search of this length; train longer, or lower schedule.every of "
            "schedule 'regrow'"
        )
