"""The keys of stages: hashes of what decides their results.

A field at its default is left out of a key, so that a new option moves no old result. Whatever a
stage was made with is recorded in full beside its result, and compared before it is used again
(`changed`): a default that has changed since is noticed.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from gemkit.models.custom import Custom
from gemkit.models.library import LibraryNet
from gemkit.parts.part import Part
from gemkit.parts.recipe import ROLES, Recipe
from gemkit.plugins.provenance import add_version, hashes_of, versions_of
from gemkit.plugins.registry import Registry
from gemkit.pruning.search import plan_without_rates
from gemkit.runs.resolved import ResolvedRun
from gemkit.sanity.trials import Check
from gemkit.training.plan import Runtime

THREADS = 1
"""Threads of a stage whose configuration sets none: studies run several stages side by side."""


def key_of(kind: str, data: Mapping[str, Any]) -> str:
    """Return the key of a stage: 16 hexadecimal digits."""
    text = json.dumps([kind, data], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def search_data(run: ResolvedRun, registry: Registry, *, full: bool = False) -> dict[str, Any]:
    """Return what decides the ticket of a run; `full` with every default written out."""
    parts = [*run.recipe.parts().values(), run.model, run.dataset, run.task.objective]
    task = run.task.to_data()
    if "objective" in task:
        task["objective"] = _part(run.task.objective, full)
    return task | _filled(
        {
            "recipe": _recipe(run.recipe, full),
            "density": run.density,
            "model": _part(run.model, full),
            "dataset": _part(run.dataset, full),
            "seed": run.seed,
            "search": _fields(plan_without_rates(run.recipe, run.search), full),
            "on_collapse": run.on_collapse if full or run.on_collapse != "error" else None,
            "runtime": _runtime(run.runtime, full),
            "plugins": _plugins(parts, registry),
        }
    )


def finetune_data(run: ResolvedRun, search: str, *, full: bool = False) -> dict[str, Any]:
    """Return what decides the fine-tuning of the ticket of a search."""
    compact = {"compact": True} if run.runtime.compact else {}
    return {"search": search, "plan": _fields(run.finetune, full), **compact}


def check_data(
    run: ResolvedRun, search: str, check: Check, registry: Registry, *, full: bool = False
) -> dict[str, Any]:
    """Return what decides a control or measurement of the ticket of a search."""
    own = {"check": _part(check, full), "plugins": _plugins([check], registry)}
    return finetune_data(run, search, full=full) | _filled(own)


def changed(recorded: object, now: object, path: str = "") -> list[str]:
    """List the settings that both know and that differ; a setting that only one knows is new."""
    if isinstance(recorded, Mapping) and isinstance(now, Mapping):
        return [
            words
            for name in recorded.keys() & now.keys()
            for words in changed(recorded[name], now[name], f"{path}.{name}" if path else name)
        ]
    return [] if recorded == now else [f"{path} was {recorded!r} and is {now!r}"]


def _part(part: Part, full: bool) -> dict[str, Any]:
    own = {"name": part.name, **_fields(part, full)}
    return own | {name: _part(inner, full) for name, inner in part.inner().items()}


def _fields(model: BaseModel, full: bool) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_defaults=not full, exclude_none=True)


def _recipe(recipe: Recipe, full: bool) -> dict[str, Any]:
    """Return a recipe without its help and its density; parts that roles have anyway are left out.

    The name of the pruner stays: the ticket records it.
    """
    data = recipe.model_dump(
        mode="json",
        exclude={*ROLES, "help", "density"},
        exclude_defaults=not full,
        exclude_none=True,
    )
    for role, part in recipe.parts().items():
        own = _part(part, full)
        if full or own != {"name": ROLES[role].default}:
            data[role] = own
    return data


def _runtime(runtime: Runtime, full: bool) -> dict[str, Any]:
    """Return what of the machine changes bits; compact networks are for fine-tuning alone."""
    data = _fields(runtime, full)
    data.pop("compact", None)
    threads = data.pop("threads", None) or THREADS
    return data | ({"threads": threads} if full or threads != THREADS else {})


def _plugins(parts: list[Any], registry: Registry) -> dict[str, str]:
    """Return the versions of plugins, and hashes of plugin files, own networks and weights.

    Another version of a plugin is another method. gemkit, torch and the libraries of networks are
    recorded with results instead: a patch release would void every study.
    """
    libraries = {part.library for part in parts if isinstance(part, LibraryNet)}
    versions = versions_of(parts, registry)
    own = {name: number for name, number in versions.items() if name not in libraries}
    for part in parts:
        if isinstance(part, Custom | LibraryNet):
            for name, number in hashes_of(part):
                add_version(own, name, number)
    return own


def _filled(data: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is empty."""
    return {name: value for name, value in data.items() if value not in (None, {})}
