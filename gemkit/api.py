"""The Python API: resolves the names of pruners and parts, and calls the engine."""

from collections.abc import Callable, Sequence
from typing import Literal

from lightning_fabric import Fabric
from torch import nn

from gemkit.compaction import finetune as train_ticket
from gemkit.core.memory import memory_explained
from gemkit.data.given import check_data
from gemkit.data.source import Data
from gemkit.models.check import check_model
from gemkit.models.prepare import prepare as prepared
from gemkit.parts.recipe import Recipe
from gemkit.plugins.provenance import versions_of
from gemkit.plugins.usual import usual_registry
from gemkit.pruning import finetune as finetuning
from gemkit.pruning import search as pruning
from gemkit.ranking import fraction
from gemkit.report.progress import shown
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpointer import Checkpointer
from gemkit.training.loop import Listener
from gemkit.training.plan import CollapsePolicy, Plan, Runtime
from gemkit.training.task import ObjectiveSpec, task_from, task_of


@memory_explained()
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
        data: the data: `Data.of_tensors(train=(x, y), test=(x, y))`, `Data.of_datasets` or
            `Data.of_loaders`.
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
    data = check_data(data)
    registry = usual_registry()
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
            density=fraction(density),
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


@memory_explained()
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
            check_data(data),
            epochs=epochs,
            plan=plan,
            seed=seed,
            runtime=runtime,
            observers=[show, *observers],
            fabric=fabric,
            checkpointer=checkpointer,
            task=task_of(ticket.info, usual_registry(), objective, metric),
        )


@memory_explained()
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
    task = task_of(ticket.info, usual_registry(), objective, metric)
    return finetuning.evaluate(
        ticket, model, check_data(data), split=split, runtime=runtime, fabric=fabric, task=task
    )
