"""One run of one pruner, measured: search, measure, fine-tune, measure again."""

import time
from pathlib import Path

import torch

from gemkit import Plan, Recipe, Runtime, evaluate, finetune, load_plugins, search
from gemkit.core.errors import CollapseError
from gemkit.core.events import EpochEnded, Event
from gemkit.data.part import DatasetPart
from gemkit.models.part import ModelPart
from gemkit.pruning.finetune import finetune_plan
from gemkit.runs.machine import host
from gemkit.study.store import Row

RESULTS = Path(__file__).parent / "results"
PLUGINS = Path(__file__).parents[1] / "plugins"


def measure(run: Row, recipe: Recipe | None = None) -> Row:
    """Carry out what a row says (pruner, density, seed, epochs, …) and add what comes of it.

    A recipe may take the place of the pruner's own. A row may name a package under plugins/
    (`plugin`), and change the recipe (`parts`, `options`) and the plan of the search (`training`).
    Layers that lose every weight are counted; a network that keeps no weight at all says so.
    Time is the processor's, not the clock's: runs go side by side on machines that do other things.
    """
    registry, runtime = load_plugins(files=_files(run), only=[]), Runtime(device="cpu")
    dataset = registry.build("datasets", run["dataset"])
    network = registry.build("models", run["model"])
    assert isinstance(dataset, DatasetPart)
    assert isinstance(network, ModelPart)
    data = dataset.load(None)
    torch.manual_seed(run["seed"])
    model = network.build(data.shape, data.classes)
    plan = Plan(epochs=run["epochs"], batch_size=run["batch_size"], **run.get("training", {}))
    told = run | {"dataset": _without_path(run["dataset"]), "host": host()}
    began, curves = time.process_time(), Curves()
    try:
        ticket = search(
            recipe
            or registry.recipe(
                run["pruner"], parts=run.get("parts", {}), options=run.get("options", {})
            ),
            model,
            data,
            density=run["density"],
            plan=plan,
            seed=run["seed"],
            runtime=runtime,
            on_collapse="warn",
            observers=[curves],
        )
    except CollapseError as error:
        return told | {"collapse": str(error)}
    searched = time.process_time()
    before = evaluate(ticket, model, data, runtime=runtime)
    training = finetune_plan(Plan(epochs=run["finetune_epochs"], batch_size=run["batch_size"]))
    trained = finetune(ticket, model, data, plan=training, runtime=runtime)
    assert ticket.info.plan is not None
    return told | {
        "kept": ticket.kept,
        "prunable": ticket.prunable,
        "empty_layers": sum(layer.kept == 0 for layer in ticket.layers),
        "before": before,
        "after": evaluate(trained, model, data, runtime=runtime),
        "validation_before": evaluate(ticket, model, data, split="validation", runtime=runtime),
        "validation_after": evaluate(trained, model, data, split="validation", runtime=runtime),
        "densities": curves.densities,
        "strengths": curves.strengths,
        "search_epochs": ticket.info.epochs,
        "cpu_seconds_search": round(searched - began, 1),
        "cpu_seconds": round(time.process_time() - began, 1),
        "recipe": ticket.info.recipe,
        "plan": ticket.info.plan.model_dump(mode="json"),
        "finetune_plan": training.model_dump(mode="json"),
        "versions": ticket.info.versions,
    }


def _files(run: Row) -> list[Path]:
    """Return the file of the plugin that a row names, if any."""
    if "plugin" not in run:
        return []
    return [PLUGINS / run["plugin"] / f"{run['plugin'].replace('-', '_')}.py"]


class Curves:
    """Record density and λ after every epoch of a search."""

    def __init__(self) -> None:
        self.densities: list[float] = []
        self.strengths: list[float | None] = []

    def __call__(self, event: Event) -> None:
        """Record the end of an epoch."""
        if isinstance(event, EpochEnded):
            self.densities.append(round(event.density, 6))
            self.strengths.append(event.strength and float(f"{event.strength:.4g}"))


def _without_path(dataset: Row) -> Row:
    """Where somebody keeps images is nobody else's business."""
    return {key: value for key, value in dataset.items() if key != "path"}
