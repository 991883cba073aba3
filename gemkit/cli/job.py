"""What a run is going to do: every choice resolved and checked before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from gemkit.bounded import Density, Seed
from gemkit.cli.choices import (
    dataset_part,
    make_plans,
    make_recipe,
    model_for,
    model_part,
    switches,
    validated,
)
from gemkit.cli.fields import sort_fields
from gemkit.cli.manner import Manner
from gemkit.collapse import CollapsePolicy
from gemkit.compose import check_fit, needs_training
from gemkit.data.fingerprint import Fingerprint
from gemkit.data.source import Data
from gemkit.engine import finetune_plan, search_plan
from gemkit.models.custom import model_data
from gemkit.parts import DatasetPart, ModelPart, Part
from gemkit.plan import Plan, Runtime
from gemkit.provenance import versions_of
from gemkit.recipe import ROLES, Recipe, part_data
from gemkit.registry import Registry

KINDS = (*ROLES, "rewind", "model", "dataset", "search", "finetune", "")
"""Whose fields `-o` sets in a run; the recipe itself has no name."""

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

    @property
    def name(self) -> str:
        """Name the run after what makes it different from others, as a folder can be called."""
        parts = f"{self.recipe.pruner}-{_title(self.model)}-{_title(self.dataset)}"
        return re.sub(r"[^\w.+-]+", "_", f"{parts}-d{self.density:g}-s{self.seed}")

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


class _Config(_Recorded):
    """What config.toml holds; the parts in it are looked at one by one."""

    density: Density
    seed: Seed
    on_collapse: CollapsePolicy
    recipe: dict[str, Any]
    model: dict[str, Any]
    dataset: dict[str, Any]
    search: dict[str, Any]
    finetune: dict[str, Any]
    runtime: dict[str, Any]
    versions: dict[str, str]
    run: dict[str, Any] = {}


def job_of(registry: Registry, config: Mapping[str, Any], model: str | None) -> tuple[Job, Manner]:
    """Make the job that a run's configuration describes, which is untrusted input.

    `model` is the network that was typed, if any; see `model_for`.
    """
    known = validated(_Config, config, "config")
    network = model_for(registry, known.model, model, {})
    dataset = dataset_part(registry, known.dataset, {})
    recipe = registry.recipe(known.recipe)
    job = Job(
        recipe=recipe,
        model=network,
        dataset=dataset,
        density=recipe.density or known.density,
        search=validated(Plan, known.search, "search"),
        finetune=validated(Plan, known.finetune, "finetune"),
        seed=known.seed,
        runtime=validated(Runtime, known.runtime, "runtime"),
        on_collapse=known.on_collapse,
        plugins=versions_of([*recipe.parts().values(), network, dataset], registry),
    )
    return job, validated(Manner, known.run, "run")


def data_in(config: Mapping[str, Any]) -> Fingerprint | None:
    """Return the fingerprint of the data that a run's configuration records, if it does."""
    return validated(_Recorded, {"data": config.get("data")}, "config").data


def _title(part: Part) -> str:
    """Return a part's name, with its argument where it takes one; of a path, the last name."""
    if part.argument is None:
        return part.name
    argument = str(getattr(part, part.argument)).rstrip("/").rpartition("/")[2]
    return f"{part.name}_{argument[:_LONGEST]}"


def resolve(
    registry: Registry,
    *,
    pruner: str,
    recipe_file: Path | None,
    roles: Mapping[str, str | None],
    fields: Sequence[str],
    world: Mapping[str, Any],
    network: Mapping[str, Any],
    training: Mapping[str, Any],
    machine: Mapping[str, Any],
    seed: int,
    on_collapse: CollapsePolicy,
) -> Job:
    """Turn the options of `gemkit run` into a job; anything wrong with one of them is an error."""
    own = sort_fields(fields, KINDS)
    recipe = make_recipe(registry, pruner, recipe_file, roles, own)
    asked = switches(registry, world["model"], **network)
    model = model_part(registry, world["model"], {**asked, **own["model"]})
    dataset = dataset_part(registry, world["dataset"], own["dataset"], world["train_on"])
    search, finetune = make_plans(training, own)
    job = Job(
        recipe=recipe,
        model=model,
        dataset=dataset,
        density=recipe.density or training["density"],
        search=search,
        finetune=finetune,
        seed=seed,
        runtime=validated(Runtime, machine, "machine"),
        on_collapse=on_collapse,
        plugins=versions_of([*recipe.parts().values(), model, dataset], registry),
    )
    epochs = search.epochs if needs_training(recipe) else 0
    check_fit(recipe, epochs=epochs, density=job.density)
    return job
