"""Searching layer densities around given ones (version 4 of Smart Ratio in Rare Gems).

Random tickets with slightly other layer densities are each trained for a while, and the search
continues from the best one on *validation* images. The authors tried 144 patterns made by hand for
ResNet-20, and chose by test accuracy, which this does not do.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from lightning_fabric import Fabric
from torch import nn

from gemkit.core.errors import FitError
from gemkit.core.text import number_of
from gemkit.data.source import Data
from gemkit.methods.ratios import Ratios, allocated, every_weight, layer_densities
from gemkit.methods.smart_ratio import Densities
from gemkit.parts.recipe import Recipe
from gemkit.pruning.finetune import evaluate, finetune
from gemkit.pruning.search import search
from gemkit.training.loop import Listener
from gemkit.training.plan import Plan, Runtime


class Trial(NamedTuple):
    """Layer densities that were tried: what was changed, and the validation accuracy reached."""

    change: str
    ratios: Ratios
    accuracy: float


def search_ratios(
    recipe: Recipe,
    model: nn.Module,
    data: Data,
    *,
    density: float = 0.05,
    step: float = 0.3,
    rounds: int = 1,
    repeats: int = 1,
    plan: Plan | None = None,
    seed: int = 0,
    runtime: Runtime | None = None,
    observers: Sequence[Listener] = (),
    on_trial: Callable[[Trial], None] = lambda trial: None,
    fabric: Fabric | None = None,
) -> list[Trial]:
    """Try layer densities around those of the recipe; the trial of highest accuracy is the result.

    Args:
        recipe: finds the tickets in one shot; its allocation gives the first layer densities.
        model: the network, left as it was.
        data: tickets train on its training split; its validation split compares them.
        density: of the whole network; every trial keeps it exactly.
        step: how far to go: a group of layers is multiplied or divided by 1 + step.
        rounds: how often to continue from the best, with up to eight trials each time.
        repeats: tickets per trial, each with a seed of its own; their accuracies are averaged.
        plan: how tickets train.
        seed: of the first ticket; the same for every trial, so that they compare.
        runtime: device, precision, compilation.
        observers: functions called with every event of all runs.
        on_trial: called with every trial.
        fabric: a launched Fabric to use instead of one made for `runtime`.
    """
    alive, density = every_weight(recipe, model), recipe.density or density
    seeds = range(seed, seed + repeats)

    def fit(ratios: Ratios) -> Ratios:
        return allocated(Densities(densities=ratios), alive, density)

    def score(ratios: Ratios) -> float:
        own = recipe.model_copy(update={"allocation": Densities(densities=ratios)})
        return _accuracy(own, model, data, density, plan, seeds, runtime, observers, fabric)

    trials: list[Trial] = []
    for trial in climb(layer_densities(recipe, model, density), fit, score, step, rounds):
        trials.append(trial)
        on_trial(trial)
    return trials


def _accuracy(
    recipe: Recipe,
    model: nn.Module,
    data: Data,
    density: float,
    plan: Plan | None,
    seeds: range,
    runtime: Runtime | None,
    observers: Sequence[Listener],
    fabric: Fabric | None,
) -> float:
    """Return the mean validation accuracy of fine-tuned tickets, one for every seed."""
    found = []
    for seed in seeds:
        ticket = search(
            recipe,
            model,
            data,
            density=density,
            seed=seed,
            runtime=runtime,
            on_collapse="warn",  # such a ticket competes, and loses
            observers=observers,
            fabric=fabric,
        )
        trained = finetune(
            ticket, model, data, plan=plan, runtime=runtime, observers=observers, fabric=fabric
        )
        found.append(
            evaluate(trained, model, data, split="validation", runtime=runtime, fabric=fabric)
        )
    return sum(found) / len(found)


def climb(
    start: Ratios,
    fit: Callable[[Ratios], Ratios],
    score: Callable[[Ratios], float],
    step: float,
    rounds: int,
) -> Iterator[Trial]:
    """Try the start, then its neighbours, then those of the best, while there is a better one.

    `fit` brings densities to the budget. What was tried is not tried again; ties stay where they
    are.
    """
    best = Trial("start", start, score(start))
    yield best
    seen = {start}
    for _ in range(rounds):
        here = best
        for change, moved in neighbours(here.ratios, step):
            ratios = fit(moved)
            if ratios in seen:
                continue
            seen.add(ratios)
            trial = Trial(change, ratios, score(ratios))
            yield trial
            best = max(best, trial, key=lambda one: one.accuracy)
        if best is here:
            return


def neighbours(ratios: Ratios, step: float) -> Iterator[tuple[str, Ratios]]:
    """Make one group of layers denser, then sparser; each group in turn, never above 1."""
    for name, group in groups(len(ratios)).items():
        for word, factor in (("denser", 1 + step), ("sparser", 1 / (1 + step))):
            moved = [
                min(1.0, ratio * factor) if place in group else ratio
                for place, ratio in enumerate(ratios)
            ]
            yield f"{name} {word}", tuple(moved)


def groups(layers: int) -> dict[str, range]:
    """Divide the layers as the authors did: both ends, and three parts of those in between."""
    if layers < 3:
        raise FitError(
            f"a network of {number_of(layers, 'prunable layer')} has none between the first and "
            "the last, so there is no group of layers to make denser or sparser"
        )
    cuts = [1 + part * (layers - 2) // 3 for part in range(4)]
    inner = zip(("early", "middle", "late"), cuts, cuts[1:], strict=False)
    found = {"ends": range(0, layers, layers - 1)}
    return found | {name: range(low, high) for name, low, high in inner if low < high}


def most_trials(rounds: int) -> int:
    """Return the largest number of trials: the start, and two for each of four groups a round."""
    return 1 + 8 * rounds
