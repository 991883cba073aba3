"""The one loop: every pruner is a recipe that `search` follows."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Literal

import torch
from lightning_fabric import Fabric
from torch import nn

from gemkit.best import Best
from gemkit.collapse import CollapsePolicy
from gemkit.compose import check_fit, needs_training
from gemkit.data.source import Data
from gemkit.errors import FitError, OptionError, some
from gemkit.events import Noted
from gemkit.freezing import Freezer
from gemkit.guard import Guard
from gemkit.keeping import Keeper
from gemkit.limits import check_seed
from gemkit.masking import MaskedNet
from gemkit.outputs import check_labels
from gemkit.parts import Freeze, LearnedScores
from gemkit.phase import Listener, Phase, Training
from gemkit.plan import Plan, Runtime
from gemkit.recipe import Recipe
from gemkit.rewinding import Rewinder, laps
from gemkit.tensors import (
    Tensors,
    budget,
    frozen_names,
    generator,
    kept,
    parameters_of,
    prunable_names,
    seeded,
    total,
)
from gemkit.ticket import Ticket, TicketInfo
from gemkit.ticket_fit import ties_of
from gemkit.training import Trainer, accuracy, make_fabric, place

_WEIGHT_LR = {"sgd": 0.05, "adam": 1e-3, "adamw": 1e-3}
_SCORE_LR_ADAM = 0.01
_NO_TIME_LEFT = (
    "the last freeze falls on the end of the search, so no score can adapt to it; train longer or "
    "choose another schedule.every"
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
    keeper: Keeper | None = None,
    prune_frozen: bool = False,
) -> Ticket:
    """Find a ticket of `density` in a copy of `model`, following the recipe.

    One-shot recipes take no training step; the model itself is left as it was. Where weights are
    trained between freezes, `on_ticket` is called after every freeze, the last one included, with
    the ticket of that density. A `keeper` saves the search, and resumes one that it has saved.
    Frozen parameters (`requires_grad=False`) keep their values, and are pruned only with
    `prune_frozen`.
    """
    check_seed(seed)
    phase = Phase("search", data, seed, runtime or Runtime(), observers, fabric, keeper)
    plan = search_plan(recipe, plan or Plan(), data)
    target = recipe.density or density
    check_fit(recipe, epochs=plan.epochs, density=target)
    with seeded(seed, phase.fabric.device):
        net = _prepare(_aimed(recipe, target), model, phase, prune_frozen)
        _refuse_empty(target, net)
        recipe.allocation.keep(net.effective, net.alive, target)  # or it refuses, in good time
        per_epoch = phase.steps_per_epoch(plan)
        freezes = recipe.schedule.freezes(target, plan.epochs, per_epoch)
        guard = Guard(recipe, net, phase, plan, on_collapse)
        guard.check_start(freezes)
        trainer = Trainer(net, plan, phase.fabric, phase.runtime)
        freezer = Freezer(recipe, trainer, phase, guard)
        ways = laps(recipe.rewind, freezes, plan.epochs * per_epoch, per_epoch)
        learns = isinstance(recipe.scores, LearnedScores)
        if learns and not ways[-1]:
            phase.tell(Noted(_NO_TIME_LEFT))
        if not prune_frozen and (left := frozen_names(model)):
            phase.tell(Noted(_NOT_PRUNED.format(some(left, most=3))))
        training = Training(phase, trainer, ways)
        rewinder = Rewinder(recipe.rewind, training)
        phase.begin(net=net, trainer=trainer, training=training, freezer=freezer, rewinder=rewinder)
        rewinder.remember()
        for step, aim in freezes[len(freezer.history) :]:
            training.until(step)
            freezer.freeze(training.steps, aim)
            rewinder.go_back()
            if on_ticket and recipe.schedule.trains and not learns:
                rung = _ticket(recipe, training, freezer, net.mask, aim, prune_frozen)
                done = freezes[: len(freezer.history)]
                on_ticket(rung.with_info(partway=not _ends_with(done, recipe, training)))
            phase.keeper.look()
        if ways[-1]:
            training.until(ways[-1].stop)
        mask = freezer.final_mask(training.steps, target)
    return _ticket(recipe, training, freezer, mask, target, prune_frozen)


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
    keeper: Keeper | None = None,
) -> Ticket:
    """Train the ticket's weights in a copy of `model`; the mask holds to the last step.

    With `select="best"` in the plan, the weights of the best epoch are kept.
    `epochs` overrides those of the plan; the seed is the ticket's own unless another is given.
    """
    seed = ticket.info.seed if seed is None else seed
    phase = Phase("finetune", data, seed, runtime or Runtime(), observers, fabric, keeper)
    plan = finetune_plan((plan or Plan()).lasting(epochs))
    with seeded(seed, phase.fabric.device):
        own = ticket.apply(copy.deepcopy(model))
        check_labels(own, data)
        net = MaskedNet(place(own, phase.fabric, phase.runtime), list(ticket.mask))
        net.freeze_({name: mask.to(phase.fabric.device) for name, mask in ticket.mask.items()}, {})
        whole = range(plan.epochs * phase.steps_per_epoch(plan))
        trainer = Trainer(net, plan, phase.fabric, phase.runtime)
        best = {"best": Best(net)} if plan.select == "best" else {}
        phase.observers = [*phase.observers, *best.values()]
        training = Training(phase, trainer, [whole])
        phase.begin(**best, net=net, trainer=trainer, training=training)
        training.until(whole.stop)
        for one in best.values():
            one.load_()
    weights = {
        name: torch.where(mask, net.effective[name].cpu(), ticket.state[name])
        for name, mask in ticket.mask.items()
    }
    trained = _state(net, weights)
    return replace(
        ticket, state=trained, info=ticket.info.model_copy(update={"stage": "finetuned"})
    )


def evaluate(
    ticket: Ticket,
    model: nn.Module,
    data: Data,
    *,
    split: Literal["train", "validation", "test"] = "test",
    runtime: Runtime | None = None,
    fabric: Fabric | None = None,
) -> float:
    """Measure the accuracy of what is in the ticket, on one split of the data."""
    runtime = runtime or Runtime()
    fabric = fabric or make_fabric(runtime)
    own = ticket.apply(copy.deepcopy(model))
    check_labels(own, data, [split])
    own = place(own, fabric, runtime)
    module = fabric.setup_module(own, move_to_device=False)
    return accuracy(module, getattr(data, split).to(fabric.device), fabric, data.classes)


def search_plan(recipe: Recipe, plan: Plan, data: Data) -> Plan:
    """Decide what the plan leaves open: the learning rate, and how long the clock runs at a time.

    One-shot recipes do not train at all, and a schedule may set the length of its rounds.
    """
    if plan.select != "last":
        raise OptionError("search.select = 'best': a search keeps its last mask; leave it out")
    plan = plan.lasting(recipe.schedule.round_epochs if needs_training(recipe) else 0)
    if not isinstance(recipe.scores, LearnedScores):
        return finetune_plan(plan)
    lr = recipe.scores.default_lr(plan.epochs * data.train.steps(plan.batch_size))
    return plan.decided(
        lr=lr if plan.optimizer == "sgd" else _SCORE_LR_ADAM,
        weight_decay=recipe.scores.default_weight_decay,
    )


def finetune_plan(plan: Plan) -> Plan:
    """Decide what a plan that trains weights leaves open; the paper decays them by 1e-4."""
    return plan.decided(lr=_WEIGHT_LR[plan.optimizer], weight_decay=1e-4)


def _aimed(recipe: Recipe, density: float) -> Recipe:
    """Let the regularizer know which density the search is for."""
    return recipe.model_copy(update={"regularizer": recipe.regularizer.towards(density)})


def _refuse_empty(density: float, net: MaskedNet) -> None:
    """Refuse a density that keeps nothing, before anything is trained."""
    if budget(total(net.alive), density) == 0:
        raise FitError(
            f"density {density:g} keeps none of {total(net.alive):,} prunable weights; it must be "
            f"at least {0.5 / total(net.alive):.2g}"
        )


def _prepare(recipe: Recipe, model: nn.Module, phase: Phase, prune_frozen: bool) -> MaskedNet:
    """Copy the model, draw its starting weights unless they are frozen, and put it under a mask."""
    own = copy.deepcopy(model)
    parameters = parameters_of(own, names := prunable_names(own, frozen=prune_frozen))
    weights = {name: weight.detach() for name, weight in parameters.items() if weight.requires_grad}
    drawn = recipe.init.draw(weights, generator(phase.seed, "weights"))
    for name, weight in list(weights.items()):
        weight.copy_(drawn.pop(name))  # one copy less in memory, layer by layer
    check_labels(own, phase.data)
    own = place(own, phase.fabric, phase.runtime)
    if isinstance(recipe.scores, LearnedScores):
        return MaskedNet.learning(own, names, recipe, generator(phase.seed, "scores"))
    return MaskedNet(own, names)


def _ends_with(freezes: list[Freeze], recipe: Recipe, training: Training) -> bool:
    """Tell whether a search to the density of the last of these freezes consists of just these."""
    epochs, per_epoch = training.trainer.plan.epochs, training.steps_per_epoch
    aim = freezes[-1].density
    if recipe.density not in (None, aim):
        return False
    if laps(recipe.rewind, freezes, epochs * per_epoch, per_epoch)[-1]:
        return False  # it would train on after the last one
    return recipe.schedule.freezes(aim, epochs, per_epoch) == freezes


def _ticket(
    recipe: Recipe,
    training: Training,
    freezer: Freezer,
    mask: Tensors,
    density: float,
    prune_frozen: bool,
) -> Ticket:
    """Take the ticket out of a search as it stands."""
    net, phase = training.trainer.net, training.phase
    info = TicketInfo(
        pruner=recipe.pruner,
        recipe=recipe.to_data(),
        model=None,
        dataset=None,
        shape=phase.data.shape,
        classes=phase.data.classes,
        density_target=density,
        seed=phase.seed,
        epochs=round(training.steps / training.steps_per_epoch),
        plan=training.trainer.plan,
        stage="found",
        versions={"gemkit": version("gemkit"), "torch": torch.__version__},
        history=freezer.history,
        alive=kept(net.alive),
        on_collapse=freezer.on_collapse,
        prune_frozen=prune_frozen,
        tied=ties_of(net.model.state_dict(keep_vars=True)),
    )
    return Ticket(mask=_on_cpu(mask), state=_state(net, net.weights), info=info)


def _state(net: MaskedNet, weights: Tensors) -> Tensors:
    """Return the model's whole state on the CPU, with these weights, not masked, in their places.

    A tied weight stands in the state under every name it has.
    """
    places = {net.parameters[name].data_ptr(): weight for name, weight in weights.items()}
    state = net.model.state_dict()
    return _on_cpu({name: places.get(part.data_ptr(), part) for name, part in state.items()})


def _on_cpu(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
