"""`gemkit ratios`: layer densities for random tickets, copied, searched or learned."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemkit.cli.command import (
    Answer,
    Decorator,
    Number,
    SectionedCommand,
    answers_json,
    bundle,
    chain,
    echo,
    given,
    load_registry,
    option,
    split_text,
)
from gemkit.cli.density import density_option
from gemkit.cli.options import (
    fields_option,
    integer_option,
    network_options,
    phase_options,
    plugin_option,
    recipe_source,
    role_options,
    searching_machine_options,
    seed_option,
    world_options,
)
from gemkit.cli.tickets import FOUND, TicketPath, ticket_argument
from gemkit.core.text import number_of

if TYPE_CHECKING:
    from gemkit.core.tensors import Tensors
    from gemkit.methods.ratio_search import Trial
    from gemkit.parts.recipe import Recipe
    from gemkit.runs.resolved import ResolvedRun
    from gemkit.runs.setup import Setup

RULES = ("resnet", "vgg")
TRIAL_EPOCHS = 10


@click.group()
def ratios() -> None:
    """Find densities for the layers of random tickets.

    Every command prints a recipe for `gemkit run --recipe`, and can start from one.
    """


@ratios.command("copy", cls=SectionedCommand, short_help="Copy those of a ticket.")
@ticket_argument(FOUND)
@option(
    "Parts",
    "--ends",
    type=click.Choice(RULES),
    help="Copy only the first and last layer, and use this Smart Ratio rule between them.",
)
@answers_json
def copy(file: TicketPath, ends: str | None) -> Answer:
    """Give random tickets the layer densities of a TICKET, or of the one that a RUN found.

    With --ends, the layers in between have the densities of Smart Ratio at the ticket's density, so
    the total density may differ from the ticket's.
    """
    import torch

    from gemkit.methods.ratios import allocated, with_densities
    from gemkit.methods.smart_ratio import SmartRatio
    from gemkit.plugins.loader import load_plugins

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


def _ratio_options(what: str, lr: str, epochs: int, kinds: str) -> Decorator:
    """Define what searching and learning share: where to start, and how to train."""
    training = {"density": density_option, **phase_options(what, lr, epochs)}
    return chain(
        [
            recipe_source("smart_ratio"),
            role_options,
            fields_option(f"a role above, model, dataset or {kinds}; recipe fields have none"),
            world_options("conv4", "digits"),
            network_options,
            bundle("training", training),
            seed_option(0),
            searching_machine_options,
            answers_json,
            plugin_option,
        ]
    )


@ratios.command("search", cls=SectionedCommand, short_help="Search around those of a recipe.")
@_ratio_options("each trial", "by optimizer", TRIAL_EPOCHS, "finetune")
@option(
    "Search",
    "--step",
    type=Number(0, min_open=True),
    metavar="X",
    default=0.3,
    help="Factor 1 + X by which a group of layers is made denser or sparser.",
)
@integer_option(
    "Search",
    "--rounds",
    "Rounds of up to 8 trials, each from the best so far.",
    least=1,
    default=1,
)
@integer_option(
    "Search",
    "--repeats",
    "Random tickets per trial, whose accuracies are averaged.",
    least=1,
    default=1,
)
def search(step: float, rounds: int, repeats: int, **options: Any) -> Answer:  # noqa: ANN401
    """Try layer densities around those of a recipe, and keep the best.

    Each trial trains random tickets and measures them on validation images. The groups of layers
    that change are both ends, and the early, middle and late ones between them.
    """
    from gemkit.cli.progress import progress
    from gemkit.data.source import known_size
    from gemkit.methods.ratio_search import most_trials, search_ratios
    from gemkit.methods.ratios import every_weight, with_densities
    from gemkit.pruning.finetune import finetune_plan
    from gemkit.report.progress import Bars
    from gemkit.report.tables import percent

    def show_trial(trial: Trial) -> None:
        echo(f"{trial.change:<15} {percent(trial.accuracy)}", err=True)

    with _start(**options) as (run, setup):
        began, plan = time.perf_counter(), finetune_plan(run.finetune)
        tickets = number_of(most_trials(rounds) * repeats, "ticket")
        echo(
            f"up to {tickets}, {number_of(plan.epochs, 'epoch')} each, "
            f"compared on {split_text(known_size(setup.data.validation), 'validation')}",
            err=True,
        )
        with progress() as show:
            trials = search_ratios(
                run.recipe,
                setup.model,
                setup.data,
                density=run.density,
                step=step,
                rounds=rounds,
                repeats=repeats,
                plan=plan,
                seed=run.seed,
                runtime=run.runtime,
                observers=[show] if isinstance(show, Bars) else [],  # one line a trial is enough
                on_trial=show_trial,
                fabric=setup.fabric,
            )
        best = max(trials, key=lambda trial: trial.accuracy)
        alive = every_weight(run.recipe, setup.model)
        text = (
            f"Layer densities searched from '{run.recipe.pruner}', "
            f"{percent(best.accuracy)} on validation images"
        )
        facts = {
            "accuracy_validation": best.accuracy,
            "change": best.change,
            "trials": [trial._asdict() for trial in trials],
            "seconds": round(time.perf_counter() - began, 3),
        }
        return _answer(with_densities(run.recipe, best.ratios, alive, text), alive, facts)


@ratios.command("learn", cls=SectionedCommand, short_help="Learn them by gradient descent.")
@_ratio_options("learning", "by length", 30, "search")
def learn(**options: Any) -> Answer:  # noqa: ANN401
    """Learn layer densities by gradient descent, starting from those of a recipe.

    Weights are frozen; in every step each is kept with its layer's density as probability. The
    total density may change.
    """
    from gemkit.cli.progress import progress
    from gemkit.methods.ratio_learning import learn_ratios, rate_plan
    from gemkit.methods.ratios import every_weight, with_densities

    with _start(**options) as (run, setup):
        began, plan = time.perf_counter(), rate_plan(run.search, setup.data)
        with progress() as show:
            ratios = learn_ratios(
                run.recipe,
                setup.model,
                setup.data,
                density=run.density,
                plan=plan,
                seed=run.seed,
                runtime=run.runtime,
                observers=[show],
                fabric=setup.fabric,
            )
        alive = every_weight(run.recipe, setup.model)
        text = f"Layer densities learned from '{run.recipe.pruner}'"
        recipe = with_densities(run.recipe, ratios, alive, text)
        echo(f"density {run.density:.4g} at the start, {recipe.density:.4g} now", err=True)
        facts = {"lr": plan.lr, "seconds": round(time.perf_counter() - began, 3)}
        return _answer(recipe, alive, {"density_start": run.density, **facts})


@contextmanager
def _start(
    *,
    world: Mapping[str, Any],
    training: Mapping[str, Any],
    plugins: Sequence[Path],
    **options: Any,  # noqa: ANN401 - the rest of what `config_of` takes
) -> Iterator[tuple[ResolvedRun, Setup]]:
    """Resolve and check the options, open the device and load the data."""
    from gemkit.cli.configure import config_of, settings_of, sorted_options
    from gemkit.cli.progress import only_first_prints
    from gemkit.cli.run import note_ignored
    from gemkit.runs.resolved import resolve
    from gemkit.runs.setup import open_fabric, set_up
    from gemkit.runs.specs import model_argument

    registry = load_registry(plugins)
    config = config_of(
        registry,
        world=world,
        training={**training, "finetune_epochs": None, "finetune_lr": training["lr"]},
        on_collapse="warn",
        settings=settings_of(world, plugins),
        **sorted_options(options),
    )
    run = resolve(registry, config, model_argument(config.model))
    fabric = open_fabric(run.runtime)
    with only_first_prints(fabric):
        note_ignored(run, density=training["density"] if given("density") else None)
        yield (
            run,
            set_up(
                run.model,
                run.dataset,
                run.seed,
                run.runtime,
                fabric,
                data_dir=world["data_dir"],
                download=world["download"],
            ),
        )


def _answer(recipe: Recipe, alive: Tensors, facts: Mapping[str, Any]) -> Answer:
    """Return the recipe as TOML, and the density of every layer as data."""
    from gemkit.core.tensors import budget, total
    from gemkit.methods.ratios import allocated

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
