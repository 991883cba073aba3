"""What a run is going to do: every choice resolved and checked before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from gemkit.collapse import CollapsePolicy
from gemkit.compose import check_fit, needs_training
from gemkit.data.fingerprint import Fingerprint
from gemkit.data.source import Data
from gemkit.engine import finetune_plan, search_plan
from gemkit.models.custom import model_data
from gemkit.parts import DatasetPart, ModelPart, Part
from gemkit.plan import Plan, Runtime
from gemkit.preset import Preset
from gemkit.provenance import versions_of
from gemkit.recipe import Recipe, part_data
from gemkit.registry import Registry
from gemkit.runs.config import RecordedConfig, RunConfig, RunSettings
from gemkit.runs.specs import (
    dataset_part,
    model_for,
    model_part,
    recorded_model,
    title_of,
    validated,
)

_LONGEST = 60
"""Letters of a part's argument in the name of a run."""


@dataclass(frozen=True)
class Job:
    """A run, ready to start: `density` is the one that will be aimed at."""

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

    @property
    def name(self) -> str:
        """Name the run after what makes it different from others, as a folder can be called."""
        parts = f"{self.recipe.pruner}-{_title(self.model)}-{_title(self.dataset)}"
        return re.sub(r"[^\w.+-]+", "_", f"{parts}-d{self.density:g}-s{self.seed}")

    def with_settings(self, **changes: Any) -> Job:  # noqa: ANN401 - fields of RunSettings
        """Return the job, carried out in another way."""
        return replace(self, settings=self.settings.model_copy(update=changes))

    def check_fit(self) -> None:
        """Refuse parts that do not fit together, or this density, length or machine."""
        epochs = self.search.epochs if needs_training(self.recipe) else 0
        check_fit(self.recipe, epochs=epochs, density=self.density)

    def decided(self, data: Data) -> Job:
        """Return the job with the learning rates that were left open, now that data are known."""
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
        }


class _Recorded(BaseModel):
    """What config.toml holds about the data; older files hold nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    data: Fingerprint | None = None


def job_of(registry: Registry, config: RunConfig, model: str | None = None) -> Job:
    """Look up everything that a configuration names, and check that it fits together.

    A network that runs code or takes weights from elsewhere has to be named by a text, by a preset
    or in `model`, as in `model_for`: a table may come from a file.
    """
    network = _network(registry, config, model)
    dataset = dataset_part(registry, config.dataset, {})
    recipe = config.made(registry)
    job = Job(
        recipe=recipe,
        model=network,
        dataset=dataset,
        density=recipe.density or config.density,
        search=config.search,
        finetune=config.finetuning,
        seed=config.seed,
        runtime=config.runtime,
        on_collapse=config.on_collapse,
        plugins=versions_of([*recipe.parts().values(), network, dataset], registry),
        settings=config.run,
    )
    job.check_fit()
    return job


def recorded_job(registry: Registry, config: Mapping[str, Any], model: str | None) -> Job:
    """Make the job that a run's folder describes, which is untrusted input."""
    return job_of(registry, validated(RecordedConfig, config, "config"), model)


def _network(registry: Registry, config: RunConfig, typed: str | None) -> ModelPart:
    """Build the part that stands for the network."""
    if isinstance(config.model, str):
        return model_part(registry, config.model, {})
    if isinstance(config, RecordedConfig):
        return recorded_model(registry, config.model, typed, {})
    if typed is None and isinstance(config, Preset):
        typed = title_of(config.model)
    return model_for(registry, config.model, typed, {})


def data_in(config: Mapping[str, Any]) -> Fingerprint | None:
    """Return the fingerprint of the data that a run's configuration records, if it does."""
    return validated(_Recorded, {"data": config.get("data")}, "config").data


def _title(part: Part) -> str:
    """Return a part's name, with its argument where it takes one; of a path, the last name."""
    if part.argument is None:
        return part.name
    argument = str(getattr(part, part.argument)).rstrip("/").rpartition("/")[2]
    return f"{part.name}_{argument[:_LONGEST]}"
