"""gemkit from Python: names resolved, everything else as in the engine."""

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from gemkit import engine
from gemkit.collapse import CollapsePolicy
from gemkit.data.source import Data
from gemkit.errors import ImportanceError, OptionError
from gemkit.freezing import measure
from gemkit.keeping import Keeper
from gemkit.parts import Allocation, LearnedScores, Scores
from gemkit.phase import Listener
from gemkit.plan import Plan, Runtime
from gemkit.plugins import load_plugins
from gemkit.probe import Batch, Probe
from gemkit.provenance import versions_of
from gemkit.readiness import prepare as prepared
from gemkit.recipe import Recipe
from gemkit.registry import Registry
from gemkit.selection import keep_top, refuse_ties
from gemkit.tensors import Tensors, generator, parameters_of, prunable_names
from gemkit.ticket import Ticket


def search(
    recipe: Recipe | str,
    model: nn.Module,
    data: Data,
    *,
    density: float = 0.05,
    epochs: int | None = None,
    seed: int = 0,
    plan: Plan | None = None,
    runtime: Runtime | None = None,
    on_collapse: CollapsePolicy = "error",
    observers: Sequence[Listener] = (),
    fabric: Fabric | None = None,
    on_ticket: Callable[[Ticket], None] | None = None,
    keeper: Keeper | None = None,
    prepare: bool = False,
    prune_frozen: bool = False,
) -> Ticket:
    """Find a ticket in a copy of `model`.

    Args:
        recipe: a recipe, or the name of a registered pruner such as `"gem_miner"`.
        model: any `nn.Module` that maps images to logits; it is left as it was.
        data: what to train on, for example `Data.of_tensors(train=(x, y), test=(x, y))`.
        density: the fraction of prunable weights to keep.
        epochs: how long to search; overrides `plan.epochs`. One-shot pruners do not train, and
            iterative ones train every round that long.
        seed: draws weights, scores and data order; the same seed gives the same bits on a CPU.
        plan: batch size, optimizer and learning rate.
        runtime: device, precision, compilation. Several devices need a process each: start the
            script with torchrun, or launch a Fabric and pass it on. Every process then returns
            the same ticket.
        on_collapse: what to do when a layer or every path is lost.
        observers: functions called with every event of the run.
        fabric: a launched Fabric to compute with, instead of one made for `runtime`.
        on_ticket: called with the ticket of every density on the way, the last one included, by
            pruners that train weights between freezes: one search gives a ladder of tickets.
        keeper: saves the search as it goes, and resumes it; see `gemkit.keeping.DiskKeeper`.
        prepare: search in a copy in which signal reaches every layer; see `gemkit.prepare`.
        prune_frozen: prune frozen weights (`requires_grad=False`), too. They are never trained or
            drawn again; by default they are not pruned either, and a `Noted` event names them.
    """
    registry = _registry()
    if prepare:
        model = prepared(model, seed=seed)
    if isinstance(recipe, str):
        recipe = registry.recipe(recipe)
    plugins = versions_of(recipe.parts().values(), registry)

    def signed(ticket: Ticket) -> Ticket:
        return ticket.with_info(versions=ticket.info.versions | plugins)

    ticket = engine.search(
        recipe,
        model,
        data,
        density=density,
        plan=(plan or Plan()).lasting(epochs),
        seed=seed,
        runtime=runtime,
        on_collapse=on_collapse,
        observers=observers,
        fabric=fabric,
        on_ticket=on_ticket and (lambda rung: on_ticket(signed(rung))),
        keeper=keeper,
        prune_frozen=prune_frozen,
    )
    return signed(ticket)


def importance(
    scores: Scores | str,
    model: nn.Module,
    batches: Sequence[Batch],
    *,
    alive: Tensors | None = None,
    density: float = 0.05,
    seed: int = 0,
    prune_frozen: bool = False,
    **fields: Any,  # noqa: ANN401 - the options of whatever part is named
) -> Tensors:
    """Return what a score assigns to every prunable weight of your model; higher = keep.

    Args:
        scores: a scores part that measures, or its registered name with `fields` as its options.
            Learned scores are refused: only a search makes more of them than chance.
        model: any `nn.Module`; it is left exactly as it was.
        batches: (images, labels) pairs, all of which are used, in order.
        alive: masks of what is still in the network; the rest counts as zero.
        density: what would be kept, for the few scores that depend on it.
        seed: for scores that draw random numbers.
        prune_frozen: measure frozen weights (`requires_grad=False`), too; else they are left out.
        fields: options of the part when it is given by name.
    """
    if isinstance(scores, str):
        part = _registry().build("scores", scores, fields)
        assert isinstance(part, Scores)
        scores = part
    elif fields:
        raise OptionError(f"give options inside the part: {type(scores).__name__}(...)")
    if isinstance(scores, LearnedScores):
        raise ImportanceError(
            f"scores '{scores.name}' are learned: until a search has trained them they are drawn "
            "by chance, and say nothing about a network; use gemkit.search, or scores that measure"
        )
    parameters = parameters_of(model, prunable_names(model, frozen=prune_frozen))
    dense = {name: parameter.detach() for name, parameter in parameters.items()}
    masks = _all_alive(dense, alive)
    weights = {name: weight * masks[name] for name, weight in dense.items()}
    device = next(iter(weights.values())).device
    shape = tuple(batches[0][0].shape[1:]) if batches else None
    probe = Probe(
        model=model,
        weights=weights,
        alive=masks,
        batches=[(images.to(device), labels.to(device)) for images, labels in batches],
        rng=generator(seed, "importance"),
        shape=shape,
        density=density,
    )
    return _in_format_of(weights, measure(scores, probe))


def select(
    importance: Tensors,
    density: float,
    *,
    allocation: Allocation | str = "global",
    alive: Tensors | None = None,
    allow_ties: bool = False,
) -> Tensors:
    """Return boolean masks that keep exactly the budget: round-half-up(density · all weights).

    The highest importance wins, ties go to the lower index, and what is not `alive` never
    returns. `allocation` says how layers share the budget. A layer whose weights are all equally
    important, and of which only some would stay, is an error unless `allow_ties`.
    """
    if not 0 < density <= 1:
        raise OptionError(f"density {density} must lie in (0, 1]: it is the fraction to keep")
    if isinstance(allocation, str):
        part = _registry().build("allocations", allocation)
        assert isinstance(part, Allocation)
        allocation = part
    masks = _all_alive(importance, alive)
    chosen = keep_top(importance, masks, allocation.keep(importance, masks, density))
    if not allow_ties:
        refuse_ties(importance, masks, chosen, in_use=masks)
    return chosen


def _in_format_of(weights: Tensors, importance: Tensors) -> Tensors:
    """Convert importance to the weights' number format, scaled as a whole where it would not fit.

    One power of two for the whole network changes neither the ranking nor any digit.
    """
    peak = max(float(value.abs().max()) for value in importance.values() if value.numel())
    limits = [torch.finfo(weight.dtype) for weight in weights.values()]
    fits = max(limit.tiny for limit in limits) <= peak <= min(limit.max for limit in limits)
    scale = 1.0 if fits or not 0 < peak < math.inf else 2.0 ** min(1000, -math.frexp(peak)[1])
    return {name: (value * scale).to(weights[name]) for name, value in importance.items()}


def _all_alive(like: Tensors, alive: Tensors | None) -> Tensors:
    """Return the masks as booleans, everything alive where none are given."""
    if alive is None:
        return {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in like.items()}
    if set(alive) != set(like):
        raise ImportanceError("alive must have one mask per prunable weight, with the same names")
    return {name: alive[name].bool().to(tensor.device) for name, tensor in like.items()}


def _registry() -> Registry:
    """Load the plugins once for every setting of GEMKIT_PLUGINS."""
    return _loaded(os.environ.get("GEMKIT_PLUGINS"))


@cache
def _loaded(restriction: str | None) -> Registry:
    return load_plugins()
