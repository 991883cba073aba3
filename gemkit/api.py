"""The Python API: resolves the names of pruners and parts, and calls the engine."""

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from gemkit.compaction import finetune as train_ticket
from gemkit.core.density import density_from
from gemkit.core.errors import DataError, ImportanceError, OptionError
from gemkit.core.probe import Batch, Probe, cross_entropy
from gemkit.core.prunable import prunable_names
from gemkit.core.selection import keep_top
from gemkit.core.tensors import Tensors, as_input, generator, is_index, parameters_of
from gemkit.data.source import Data
from gemkit.models.check import check_model, try_outputs
from gemkit.models.prepare import prepare as prepared
from gemkit.parts.allocation import Allocation
from gemkit.parts.recipe import Recipe
from gemkit.parts.scores import LearnedScores, Scores
from gemkit.plugins.current import current_registry
from gemkit.plugins.loader import load_plugins
from gemkit.plugins.provenance import versions_of
from gemkit.plugins.registry import Registry
from gemkit.pruning import finetune as finetuning
from gemkit.pruning import search as pruning
from gemkit.pruning.freeze import measure
from gemkit.report.progress import shown
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpointer import Checkpointer
from gemkit.training.loop import Listener
from gemkit.training.plan import CollapsePolicy, Plan, Runtime
from gemkit.training.task import ObjectiveSpec, task_from, task_of


def search(
    recipe: Recipe | str,
    model: nn.Module,
    data: Data,
    *,
    density: float | str = 0.05,
    epochs: int | None = None,
    seed: int = 0,
    plan: Plan | None = None,
    runtime: Runtime | None = None,
    on_collapse: CollapsePolicy = "error",
    observers: Sequence[Listener] = (),
    fabric: Fabric | None = None,
    on_ticket: Callable[[Ticket], None] | None = None,
    checkpointer: Checkpointer | None = None,
    prepare: bool = False,
    prune_frozen: bool = False,
    objective: ObjectiveSpec | None = None,
    metric: str | None = None,
    progress: bool = True,
) -> Ticket:
    """Find a ticket in a copy of `model`.

    Args:
        recipe: a recipe, or the name of a registered pruner such as `"gem_miner"`.
        model: any `nn.Module` that maps inputs to logits or values; it is not changed.
        data: the data, for example `Data.of_tensors(train=(x, y), test=(x, y))`.
        density: the fraction of prunable weights to keep, or a text such as `"5%"`.
        epochs: how long to search; overrides `plan.epochs`. One-shot pruners do not train, and
            iterative ones train every round that long.
        seed: for weights, scores and data order; the same seed gives the same bits on a CPU.
        plan: batch size, optimizer and learning rate.
        runtime: device, precision, compilation. Several devices need one process each: start the
            script with torchrun, or pass a launched Fabric. Every process returns the same ticket.
        on_collapse: what to do when a layer loses every weight, or the network every path.
        observers: functions called with every event of the run.
        fabric: a launched Fabric to use instead of one made for `runtime`.
        on_ticket: called with the ticket of every level, including the last, by pruners that train
            weights between freezes.
        checkpointer: saves the search, and resumes it; see `gemkit.training.checkpointer`.
        prepare: search a copy in which signal reaches every layer; see `gemkit.prepare`.
        prune_frozen: also prune frozen weights (`requires_grad=False`), without training or
            redrawing them. By default they are not pruned, and a warning names them.
        objective: what scores and training minimize: a name such as `"mse"`, a table with name and
            fields, or a function of outputs and targets. Cross-entropy by default. A recipe with an
            objective of its own trains by that.
        metric: the name of what is measured after every epoch; by default the objective's own.
        progress: show a bar on a terminal or in a notebook. Warnings are issued in any case, as
            `gemkit.GemkitWarning`.
    """
    registry = _registry()
    task = task_from(registry, objective, metric)
    if prepare:
        model = prepared(check_model(model), seed=seed)
    if isinstance(recipe, str):
        recipe = registry.recipe(recipe)
    plugins = versions_of([*recipe.parts().values(), task.objective], registry)

    def with_versions(ticket: Ticket) -> Ticket:
        return ticket.with_info(versions=ticket.info.versions | plugins)

    with shown(progress) as show:
        ticket = pruning.search(
            recipe,
            model,
            data,
            density=_fraction(density),
            plan=(plan or Plan()).lasting(epochs),
            seed=seed,
            runtime=runtime,
            on_collapse=on_collapse,
            observers=[show, *observers],
            fabric=fabric,
            on_ticket=on_ticket and (lambda level: on_ticket(with_versions(level))),
            checkpointer=checkpointer,
            prune_frozen=prune_frozen,
            task=task,
        )
    return with_versions(ticket)


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
    objective: ObjectiveSpec | None = None,
    metric: str | None = None,
    progress: bool = True,
) -> Ticket:
    """Train the ticket's weights in a copy of `model`; the mask holds to the last step.

    Args:
        ticket: what to train.
        model: the network that the ticket was made for; it is not changed.
        data: the data, as for `search`.
        epochs: how long to train; overrides `plan.epochs`.
        plan: batch size, optimizer and learning rate. With `select="best"`, the weights of the best
            epoch are kept.
        seed: for the order of the data; the ticket's own unless another is given.
        runtime: device, precision, compilation. With `compact`, the smaller network is trained.
        observers: functions called with every event of the run.
        fabric: a launched Fabric to use instead of one made for `runtime`.
        checkpointer: saves the training, and resumes it.
        objective: what training minimizes; the ticket's own unless another is given.
        metric: what is measured after every epoch; the ticket's own unless another is given.
        progress: show a bar on a terminal or in a notebook.
    """
    with shown(progress) as show:
        return train_ticket(
            ticket,
            model,
            data,
            epochs=epochs,
            plan=plan,
            seed=seed,
            runtime=runtime,
            observers=[show, *observers],
            fabric=fabric,
            checkpointer=checkpointer,
            task=task_of(ticket.info, _registry(), objective, metric),
        )


def evaluate(
    ticket: Ticket,
    model: nn.Module,
    data: Data,
    *,
    split: Literal["train", "validation", "test"] = "test",
    runtime: Runtime | None = None,
    fabric: Fabric | None = None,
    objective: ObjectiveSpec | None = None,
    metric: str | None = None,
) -> float:
    """Return the metric of what is in the ticket, on one split of the data.

    It is the metric of the run, or the default of its objective: accuracy for classes. Another one
    is given by name, and its direction is in `gemkit.training.metrics.METRICS`.
    """
    task = task_of(ticket.info, _registry(), objective, metric)
    return finetuning.evaluate(
        ticket, model, data, split=split, runtime=runtime, fabric=fabric, task=task
    )


def importance(
    scores: Scores | str,
    model: nn.Module,
    batches: Sequence[Batch],
    *,
    alive: Tensors | None = None,
    density: float | str = 0.05,
    seed: int = 0,
    prune_frozen: bool = False,
    objective: ObjectiveSpec | None = None,
    **fields: Any,  # noqa: ANN401 - the options of whatever part is named
) -> Tensors:
    """Return the importance of every prunable weight of a model; higher means keep.

    Args:
        scores: a measured score, or its registered name with `fields` as its options. Learned
            scores are refused: before a search they are random.
        model: any `nn.Module`; it is not changed.
        batches: (images, labels) pairs, all of which are used, in order.
        alive: masks of the alive weights; the others count as zero.
        density: the target density, for the few scores that depend on it.
        seed: for scores that draw random numbers.
        prune_frozen: also measure frozen weights (`requires_grad=False`).
        objective: the loss that scores are measured by, as in `search`; cross-entropy by default.
        fields: options of the part when it is given by name.
    """
    if isinstance(scores, str):
        part = _registry().build("scores", scores, fields)
        assert isinstance(part, Scores)
        scores = part
    elif fields:
        raise OptionError(f"set options in the part itself: {type(scores).__name__}(...)")
    if isinstance(scores, LearnedScores):
        raise ImportanceError(
            f"scores '{scores.name}' are learned: before a search they are random and say nothing "
            "about the network; use gemkit.search, or measured scores"
        )
    model = check_model(model)
    parameters = parameters_of(model, prunable_names(model, frozen=prune_frozen))
    dense = {name: parameter.detach() for name, parameter in parameters.items()}
    masks = _all_alive(dense, alive)
    weights = {name: weight * masks[name] for name, weight in dense.items()}
    device = next(iter(weights.values())).device
    if batches:
        try_outputs(
            model, as_input(batches[0][0][:2], next(iter(weights.values()))), training=False
        )
    shape = tuple(batches[0][0].shape[1:]) if batches else None
    task = task_from(_registry(), objective)
    labels = task.objective.targets in ("classes", "any") and all(
        targets.dtype == torch.int64 for _, targets in batches
    )
    probe = Probe(
        model=model,
        weights=weights,
        alive=masks,
        batches=[(images.to(device), labels.to(device)) for images, labels in batches],
        rng=generator(seed, "importance"),
        shape=shape,
        density=_fraction(density),
        objective=_class_loss if objective is None else task.loss_of(model),
        classes=labels,
        indices=any(is_index(inputs) for inputs, _ in batches),
    )
    return _in_format_of(weights, measure(scores, probe))


def select(
    importance: Tensors,
    density: float | str,
    *,
    allocation: Allocation | str = "global",
    alive: Tensors | None = None,
    allow_ties: bool = False,
) -> Tensors:
    """Return boolean masks that keep exactly round-half-up(density · all weights).

    The highest importance wins, ties go to the lower index, and weights that are not `alive` are
    never kept. `allocation` decides how layers share the budget. A layer of equally important
    weights of which only some would be kept is an error unless `allow_ties`.
    """
    density = _fraction(density)
    if isinstance(allocation, str):
        part = _registry().build("allocations", allocation)
        assert isinstance(part, Allocation)
        allocation = part
    masks = _all_alive(importance, alive)
    shares = allocation.keep(importance, masks, density)
    return keep_top(importance, masks, shares, in_use=None if allow_ties else masks)


def _class_loss(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the cross-entropy, where no objective is given; refuse targets that need another."""
    targets = batch[1]
    if targets.dtype not in (torch.int64, torch.uint8) and not _are_probabilities(targets, outputs):
        raise DataError(
            f"these targets are {str(targets.dtype).removeprefix('torch.')}, and without an "
            "objective they must be the numbers of classes, as int64, or their probabilities; give "
            "one, such as objective='mse'"
        )
    return cross_entropy(outputs, batch)


def _are_probabilities(targets: Tensor, outputs: Tensor) -> bool:
    """Whether targets are a probability for every class."""
    if targets.shape != outputs.shape or not targets.is_floating_point():
        return False
    return bool((targets >= 0).all() and ((targets.sum(1) - 1).abs() < 1e-3).all())


def _fraction(density: float | str) -> float:
    """Read a density."""
    try:
        return density_from(density)
    except ValueError as error:
        raise OptionError(f"density: {error}") from error


def _in_format_of(weights: Tensors, importance: Tensors) -> Tensors:
    """Convert importance to the dtype of the weights, scaled by a power of two if it would not fit.

    One power of two for the whole network changes neither the ranking nor any digit.
    """
    peak = max(float(value.abs().max()) for value in importance.values() if value.numel())
    limits = [torch.finfo(weight.dtype) for weight in weights.values()]
    fits = max(limit.tiny for limit in limits) <= peak <= min(limit.max for limit in limits)
    scale = 1.0 if fits or not 0 < peak < math.inf else 2.0 ** min(1000, -math.frexp(peak)[1])
    return {name: (value * scale).to(weights[name]) for name, value in importance.items()}


def _all_alive(like: Tensors, alive: Tensors | None) -> Tensors:
    """Return boolean masks; all weights are alive if none are given."""
    if alive is None:
        return {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in like.items()}
    if set(alive) != set(like):
        raise ImportanceError("alive must have one mask per prunable weight, with the same names")
    return {name: alive[name].bool().to(tensor.device) for name, tensor in like.items()}


def _registry() -> Registry:
    """Return the registry of the run around this call, or the installed plugins.

    Those are loaded once per value of GEMKIT_PLUGINS.
    """
    return current_registry() or _loaded(os.environ.get("GEMKIT_PLUGINS"))


@cache
def _loaded(restriction: str | None) -> Registry:
    return load_plugins()
