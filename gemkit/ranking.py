"""Importance of weights, and masks of the most important ones, without a search."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from gemkit.core.density import density_from
from gemkit.core.errors import DataError, ImportanceError, OptionError
from gemkit.core.events import Scoring
from gemkit.core.memory import memory_explained
from gemkit.core.probe import Batch, Probe, cross_entropy
from gemkit.core.prunable import prunable_names
from gemkit.core.selection import keep_top
from gemkit.core.tensors import Tensors, as_input, generator, is_index, parameters_of
from gemkit.data.batch import Split, as_batch
from gemkit.data.source import Data
from gemkit.models.check import check_model, try_outputs
from gemkit.parts.allocation import Allocation
from gemkit.parts.scores import LearnedScores, Scores
from gemkit.plugins.usual import usual_registry
from gemkit.pruning.measuring import measure
from gemkit.report.progress import shown
from gemkit.training.task import ObjectiveSpec, task_from


@memory_explained()
def importance(
    scores: Scores | str,
    model: nn.Module,
    batches: Iterable[Any],
    *,
    alive: Tensors | None = None,
    density: float | str = 0.05,
    seed: int = 0,
    prune_frozen: bool = False,
    objective: ObjectiveSpec | None = None,
    split: Split | None = None,
    progress: bool = True,
    **fields: Any,  # noqa: ANN401 - the options of whatever part is named
) -> Tensors:
    """Return the importance of every prunable weight of a model; higher means keep.

    Args:
        scores: a measured score, or its registered name with `fields` as its options. Learned
            scores are refused: before a search they are random.
        model: any `nn.Module`; it is not changed.
        batches: pairs of inputs and targets, such as a list of them or a DataLoader. All are used,
            in order, and held in memory: `itertools.islice(loader, 2)` takes two.
        alive: masks of the alive weights; the others count as zero.
        density: the target density, for the few scores that depend on it.
        seed: for scores that draw random numbers.
        prune_frozen: also measure frozen weights (`requires_grad=False`).
        objective: the loss that scores are measured by, as in `search`; cross-entropy by default.
        split: a function of a batch that returns inputs and targets, if it is no such pair.
        progress: show a bar on a terminal or in a notebook, if there are several batches.
        fields: options of the part when it is given by name.
    """
    if isinstance(scores, str):
        part = usual_registry().build("scores", scores, fields)
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
    batches = _as_batches(batches, split)
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
    task = task_from(usual_registry(), objective)
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
        density=fraction(density),
        objective=_class_loss if objective is None else task.loss_of(model),
        classes=labels,
        indices=any(is_index(inputs) for inputs, _ in batches),
    )
    return _in_format_of(weights, _measured(scores, probe, progress=progress))


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
    density = fraction(density)
    if isinstance(allocation, str):
        part = usual_registry().build("allocations", allocation)
        assert isinstance(part, Allocation)
        allocation = part
    masks = _all_alive(importance, alive)
    shares = allocation.keep(importance, masks, density)
    return keep_top(importance, masks, shares, in_use=None if allow_ties else masks)


def _measured(scores: Scores, probe: Probe, *, progress: bool) -> Tensors:
    """Measure importance, and show how far that is."""
    passes, batches = count(1), len(probe.batches)
    with shown(progress) as show:
        on_pass = lambda: show(Scoring(1, 1, next(passes), batches))  # noqa: E731
        return measure(scores, replace(probe, on_pass=on_pass))


def _as_batches(batches: Iterable[Any], split: Split | None) -> list[Batch]:
    """Return batches as pairs of tensors."""
    if isinstance(batches, Data):
        raise DataError(
            "give batches, such as itertools.islice(data.train.batches(64, seed=0), 1), not Data"
        )
    if not isinstance(batches, Iterable) or isinstance(batches, str | Mapping | Tensor):
        raise DataError(
            f"batches is a {type(batches).__name__}; give pairs of inputs and targets, in a list "
            "or a DataLoader"
        )
    return [as_batch(own, split, f"batch {number}") for number, own in enumerate(batches)]


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


def fraction(density: float | str) -> float:
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
