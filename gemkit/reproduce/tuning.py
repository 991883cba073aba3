"""Tune the layer densities of random tickets, as versions 4 to 6 of Smart Ratio do."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemkit.methods.ratio_learning import learn_ratios
from gemkit.methods.ratio_search import search_ratios
from gemkit.methods.ratios import Ratios, every_weight, with_densities
from gemkit.runs.resolved import ResolvedRun
from gemkit.runs.setup import Setup, load_data
from gemkit.training.loop import Listener
from gemkit.training.plan import Plan


def tuned(
    run: ResolvedRun,
    setup: Setup,
    stages: Sequence[Mapping[str, Any]],
    folder: Path | None,
    observers: Sequence[Listener] = (),
) -> tuple[ResolvedRun, int]:
    """Return the run with tuned layer densities, and the epochs that tuning took.

    Validation images are held out from it, whatever the run itself trains on: trials are compared
    on them.
    """
    if not stages:
        return run, 0
    held_out = run.dataset
    if hasattr(held_out, "train_on"):
        held_out = held_out.model_copy(update={"train_on": "train"})
    setup = replace(setup, data=load_data(held_out, setup.fabric, folder))
    alive, epochs = every_weight(run.recipe, setup.model), 0
    for stage in stages:
        find = _searched if stage["by"] == "search" else _learned
        ratios, spent = find(run, setup, stage["epochs"], observers)
        recipe = with_densities(run.recipe, ratios, alive, "Tuned layer densities")
        assert recipe.density is not None
        run, epochs = replace(run, recipe=recipe, density=recipe.density), epochs + spent
    return run, epochs


def _searched(
    run: ResolvedRun, setup: Setup, epochs: int, observers: Sequence[Listener]
) -> tuple[Ratios, int]:
    """Try neighbours, each trained like the ticket but for fewer epochs."""
    trials = search_ratios(
        run.recipe,
        setup.model,
        setup.data,
        density=run.density,
        plan=run.finetune.model_copy(update={"epochs": epochs}),
        seed=run.seed,
        runtime=run.runtime,
        observers=observers,
        fabric=setup.fabric,
    )
    best = max(trials, key=lambda trial: trial.accuracy)
    return best.ratios, epochs * len(trials)


def _learned(
    run: ResolvedRun, setup: Setup, epochs: int, observers: Sequence[Listener]
) -> tuple[Ratios, int]:
    """Learn one rate for each layer."""
    ratios = learn_ratios(
        run.recipe,
        setup.model,
        setup.data,
        density=run.density,
        plan=Plan(epochs=epochs, batch_size=run.finetune.batch_size),
        seed=run.seed,
        runtime=run.runtime,
        observers=observers,
        fabric=setup.fabric,
    )
    return ratios, epochs
