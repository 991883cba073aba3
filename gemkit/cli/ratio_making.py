"""The bodies of `gemkit ratios`: from a ticket or a recipe to a recipe with layer densities."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gemkit.cli.answers import Answer
from gemkit.cli.configuring import config_of, settings_of, sorted_options
from gemkit.cli.processes import only_first_speaks
from gemkit.cli.progress import Bars, progress
from gemkit.cli.running import say_what_is_ignored
from gemkit.cli.screen import echo
from gemkit.cli.ticket_argument import TicketPath
from gemkit.engine import finetune_plan
from gemkit.methods.ratio_learning import learn_ratios, rate_plan
from gemkit.methods.ratio_search import Trial, most_trials, search_ratios
from gemkit.methods.ratios import allocated, every_weight, with_densities
from gemkit.methods.smart_ratio import SmartRatio
from gemkit.plugins import load_plugins
from gemkit.recipe import Recipe
from gemkit.report.tables import percent
from gemkit.runs.bench import Bench, open_fabric, set_up
from gemkit.runs.job import Job, job_of
from gemkit.runs.specs import title_of
from gemkit.tensors import Tensors, budget, total
from gemkit.wording import number_of


def copy(file: TicketPath, ends: str | None) -> Answer:
    """Make the recipe of random tickets with a ticket's layer densities, or those of its ends."""
    ticket = file.load()
    alive = {name: torch.ones_like(mask) for name, mask in ticket.mask.items()}
    ratios = [layer.kept / max(1, layer.prunable) for layer in ticket.layers]
    text = f"Layer densities of a {ticket.info.pruner} ticket of density {ticket.density:.4g}"
    if ends:
        smart = SmartRatio.model_validate({"rule": ends})
        ratios[1:-1] = allocated(smart, alive, ticket.density)[1:-1]
        text += ", Smart Ratio's between the first and the last layer"
    recipe = load_plugins(only=()).recipe("smart_ratio")
    return _answer(with_densities(recipe, ratios, alive, text), alive, {"ticket": str(file)})


def search(*, step: float, rounds: int, repeats: int, **choices: Any) -> Answer:  # noqa: ANN401
    """Search around the recipe's layer densities, saying beforehand what that costs."""
    with _start(**choices) as (job, bench):
        began, plan = time.perf_counter(), finetune_plan(job.finetune)
        most = most_trials(rounds)
        echo(
            f"up to {number_of(most * repeats, 'ticket')}, {number_of(plan.epochs, 'epoch')} each, "
            f"compared on {number_of(len(bench.data.validation), 'validation image')}",
            err=True,
        )

        def tell(trial: Trial) -> None:
            echo(f"{trial.change:<15} {percent(trial.accuracy)}", err=True)

        with progress() as show:
            trials = search_ratios(
                job.recipe,
                bench.model,
                bench.data,
                density=job.density,
                step=step,
                rounds=rounds,
                repeats=repeats,
                plan=plan,
                seed=job.seed,
                runtime=job.runtime,
                observers=[show] if isinstance(show, Bars) else [],  # one line a trial is enough
                tell=tell,
                fabric=bench.fabric,
            )
        best = max(trials, key=lambda trial: trial.accuracy)
        alive = every_weight(bench.model)
        text = (
            f"Layer densities searched from '{job.recipe.pruner}', "
            f"{percent(best.accuracy)} on validation images"
        )
        facts = {
            "accuracy_validation": best.accuracy,
            "change": best.change,
            "trials": [trial._asdict() for trial in trials],
            "seconds": round(time.perf_counter() - began, 3),
        }
        return _answer(with_densities(job.recipe, best.ratios, alive, text), alive, facts)


def learn(**choices: Any) -> Answer:  # noqa: ANN401
    """Learn layer densities, starting from the recipe's."""
    with _start(**choices) as (job, bench):
        began, plan = time.perf_counter(), rate_plan(job.search, bench.data)
        with progress() as show:
            ratios = learn_ratios(
                job.recipe,
                bench.model,
                bench.data,
                density=job.density,
                plan=plan,
                seed=job.seed,
                runtime=job.runtime,
                observers=[show],
                fabric=bench.fabric,
            )
        alive = every_weight(bench.model)
        recipe = with_densities(
            job.recipe, ratios, alive, f"Layer densities learned from '{job.recipe.pruner}'"
        )
        echo(f"density {job.density:.4g} at the start, {recipe.density:.4g} now", err=True)
        facts = {"lr": plan.lr, "seconds": round(time.perf_counter() - began, 3)}
        return _answer(recipe, alive, {"density_start": job.density, **facts})


@contextmanager
def _start(
    *,
    density_given: bool,
    world: Mapping[str, Any],
    training: Mapping[str, Any],
    plugins: Sequence[Path],
    **choices: Any,  # noqa: ANN401 - the rest of what `config_of` takes
) -> Iterator[tuple[Job, Bench]]:
    """Resolve what was asked for, open the machine and load the data."""
    registry = load_plugins(files=plugins)
    config = config_of(
        registry,
        world=world,
        training={**training, "finetune_epochs": None, "finetune_lr": training["lr"]},
        on_collapse="warn",
        settings=settings_of(world, plugins),
        **sorted_options(choices),
    )
    job = job_of(registry, config, title_of(config.model))
    fabric = open_fabric(job.runtime)
    with only_first_speaks(fabric):
        say_what_is_ignored(job, density=training["density"] if density_given else None)
        yield (
            job,
            set_up(
                job.model,
                job.dataset,
                job.seed,
                job.runtime,
                fabric,
                data_dir=world["data_dir"],
                download=world["download"],
            ),
        )


def _answer(recipe: Recipe, alive: Tensors, facts: Mapping[str, Any]) -> Answer:
    """Hand over the recipe as TOML, or what it keeps of every layer as data."""
    assert recipe.density is not None
    ratios = allocated(recipe.allocation, alive, recipe.density)
    data = {
        "density": recipe.density,
        "kept": budget(total(alive), recipe.density),
        "prunable": total(alive),
        "layers": dict(zip(alive, ratios, strict=True)),
        "recipe": recipe.to_data(),
        **facts,
    }
    return Answer(data, recipe.to_toml().rstrip())
