"""A run with every name looked up and every choice checked, before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from gemkit.core.errors import OptionError
from gemkit.data.fingerprint import Fingerprint
from gemkit.data.part import DatasetPart
from gemkit.data.source import Data
from gemkit.models.custom import model_data
from gemkit.models.part import ModelPart
from gemkit.parts.fit import check_fit, needs_training
from gemkit.parts.options import from_data, report
from gemkit.parts.part import Part
from gemkit.parts.recipe import Recipe, part_data
from gemkit.plugins.provenance import versions_of
from gemkit.plugins.registry import Registry
from gemkit.presets.preset import Preset
from gemkit.pruning.finetune import finetune_plan
from gemkit.pruning.search import search_plan
from gemkit.runs.config import RecordedConfig, RunConfig, RunSettings
from gemkit.runs.specs import (
    dataset_part,
    model_argument,
    model_for,
    model_part,
    recorded_model,
    validated,
)
from gemkit.training.plan import CollapsePolicy, Plan, Runtime
from gemkit.training.task import Task, task_from

_LONGEST = 60
"""Characters of a part's argument in the name of a run."""


@dataclass(frozen=True)
class ResolvedRun:
    """A run that is ready to start: parts and plans instead of names and tables.

    `density` is the target density: the recipe's, if it insists on one.
    """

    recipe: Recipe
    model: ModelPart
    dataset: DatasetPart
    density: float
    search: Plan
    finetune: Plan
    seed: int
    runtime: Runtime
    on_collapse: CollapsePolicy
    plugins: Mapping[str, str]
    settings: RunSettings
    task: Task = field(default_factory=Task)

    @property
    def name(self) -> str:
        """The default name of the run's folder: pruner, model, data set, density and seed."""
        parts = f"{self.recipe.pruner}-{_title(self.model)}-{_title(self.dataset)}"
        return re.sub(r"[^\w.+-]+", "_", f"{parts}-d{self.density:g}-s{self.seed}")

    def with_settings(self, **changes: Any) -> ResolvedRun:  # noqa: ANN401
        """Return the run with other values for fields of its `RunSettings`."""
        data = self.settings.model_dump() | changes
        settings, problems = from_data(RunSettings, data, label="run", title="a run")
        if settings is None:
            raise report("this run", problems)
        return replace(self, settings=settings)

    def check_fit(self) -> None:
        """Refuse what does not fit together: parts, density, epochs, data and selection."""
        if self.finetune.select == "best" and getattr(self.dataset, "train_on", None) == "full":
            raise OptionError(
                f"finetune.select = 'best' selects by validation {self.task.metric.name}, but with "
                "dataset.train_on = 'full' the validation images are trained on; leave out one"
            )
        epochs = self.search.epochs if needs_training(self.recipe) else 0
        check_fit(self.recipe, epochs=epochs, density=self.density)

    def with_learning_rates(self, data: Data) -> ResolvedRun:
        """Return the run with defaults for learning rates that were left open.

        They depend on the number of steps, and so on the data.
        """
        return replace(
            self,
            search=search_plan(self.recipe, self.search, data),
            finetune=finetune_plan(self.finetune),
        )

    def to_data(self) -> dict[str, Any]:
        """Return plain data with every default written out, ready for TOML."""
        return {
            "density": self.density,
            "seed": self.seed,
            "on_collapse": self.on_collapse,
            "recipe": self.recipe.to_data(),
            "model": model_data(self.model),
            "dataset": part_data(self.dataset),
            "search": self.search.model_dump(mode="json", exclude_none=True),
            "finetune": self.finetune.model_dump(mode="json", exclude_none=True),
            "runtime": self.runtime.model_dump(mode="json"),
            "versions": {
                "gemkit": version("gemkit"),
                "torch": torch.__version__,
                **self.plugins,
            },
            **self.task.to_data(),
        }


class _RecordedData(BaseModel):
    """The fingerprint of the data in config.toml; older files have none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    data: Fingerprint | None = None


def resolve(registry: Registry, config: RunConfig, model: str | None = None) -> ResolvedRun:
    """Look up everything that a configuration names, and check that it fits together.

    A network that runs code or loads weights has to be named by a string, by a preset or by
    `model`, as in `model_for`: a table may come from a file.
    """
    network = _network(registry, config, model)
    dataset = dataset_part(registry, config.dataset, {})
    recipe = config.made(registry)
    task = task_from(registry, config.objective, config.metric)
    run = ResolvedRun(
        recipe=recipe,
        model=network,
        dataset=dataset,
        density=recipe.density or config.density,
        search=config.search,
        finetune=config.finetuning,
        seed=config.seed,
        runtime=config.runtime,
        on_collapse=config.on_collapse,
        plugins=versions_of([*recipe.parts().values(), network, dataset, task.objective], registry),
        settings=config.run,
        task=task,
    )
    run.check_fit()
    return run


def resolve_recorded(
    registry: Registry, config: Mapping[str, Any], model: str | None, file: Path
) -> ResolvedRun:
    """Resolve the configuration from a file of a run's folder, which is untrusted input."""
    try:
        recorded = validated(RecordedConfig, config, "config")
    except OptionError as error:
        raise OptionError(f"{file}: {error}\nput it back, or start another run") from error
    return resolve(registry, recorded, model)


def _network(registry: Registry, config: RunConfig, typed: str | None) -> ModelPart:
    """Return the part that builds the network; `typed` is what the user gave as `model`.

    Only for a run's folder may it be another network; the folder's check then lists what differs.
    """
    own = model_argument(config.model)
    if typed not in (None, own) and not isinstance(config, RecordedConfig):
        raise OptionError(
            f"model = {typed!r} contradicts the configuration, whose network is {own!r}; leave out "
            "`model`, or change the configuration: config.replace(model=...)"
        )
    if isinstance(config.model, str):
        return model_part(registry, config.model, {})
    if isinstance(config, RecordedConfig):
        return recorded_model(registry, config.model, typed, {})
    if typed is None and isinstance(config, Preset):
        typed = own
    return model_for(registry, config.model, typed, {})


def recorded_data(config: Mapping[str, Any]) -> Fingerprint | None:
    """Return the fingerprint of the data in a run's configuration, if it has one."""
    return validated(_RecordedData, {"data": config.get("data")}, "config").data


def _title(part: Part) -> str:
    """Return a part's name and its argument, if it takes one; of a path, the last component."""
    if part.argument is None:
        return part.name
    argument = str(getattr(part, part.argument)).rstrip("/").rpartition("/")[2]
    return f"{part.name}_{argument[:_LONGEST]}"
