"""From a preset to the options of `gemkit run`, and the body of `gemkit presets`."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gemkit.cli.answers import Answer
from gemkit.cli.job import Job, resolve
from gemkit.errors import UnknownNameError
from gemkit.preset import Preset, name_of, of_recipe
from gemkit.recipe import ROLES
from gemkit.registry import Registry
from gemkit.report.presets import preset_rows, preset_table

_WORLD = ("model", "dataset")
_SAID_BY = {
    "search.epochs": "epochs",
    "search.batch_size": "batch_size",
    "search.lr": "lr",
    "search.on_nan": "on_nan",
    "search.on_no_signal": "on_no_signal",
    "search.allow_ties": "allow_ties",
    "finetune.epochs": "finetune_epochs",
    "finetune.batch_size": "batch_size",
    "finetune.lr": "finetune_lr",
    "finetune.on_nan": "on_nan",
    "dataset.train_on": "train_on",
    "model.bn": "bn",
    "model.bias": "strip_bias",
    "model.strip_bias": "strip_bias",
}
"""Which option of a run says the same as a field of a preset."""


def with_preset(
    preset: Preset, options: Mapping[str, Any], given: Callable[[str], bool]
) -> dict[str, Any]:
    """Return the options of a run as the preset has them, where `given` says nobody gave others.

    A part that is given takes the place of the preset's, with all its fields; so does a pruner, or
    a recipe file, with the whole recipe. The preset is then no more than a longer command line, and
    the run is checked and recorded like any other.
    """
    fields = [
        f"{path}={json.dumps(value)}"
        for path, value in preset.options().items()
        if not any(map(given, _overruled_by(path)))
    ]
    chosen = {**options, "fields": [*fields, *options["fields"]]}
    if not given("pruner") and not given("recipe_file"):
        parts = {role: name for role, name in preset.parts().items() if not given(role)}
        chosen |= {"pruner": preset.pruner, "roles": {**options["roles"], **parts}}
    world = {kind: name_of(getattr(preset, kind)) for kind in _WORLD if not given(kind)}
    chosen["world"] = {**options["world"], **world}
    if not given("density"):
        chosen["training"] = {**options["training"], "density": preset.density}
    if not given("on_collapse"):
        chosen["on_collapse"] = preset.on_collapse
    return chosen


def job_of(registry: Registry, preset: Preset, seed: int) -> Job:
    """Resolve a preset as `gemkit run --preset` does when nothing else is given."""
    training = ("density", "epochs", "finetune_epochs", "batch_size", "lr", "finetune_lr")
    nothing: dict[str, Any] = {
        "recipe_file": None,
        "roles": {},
        "fields": [],
        "world": {"train_on": None},
        "network": {"strip_bias": False, "bn": None},
        "training": dict.fromkeys(training),
        "machine": {},
    }
    return resolve(registry, seed=seed, **with_preset(preset, nothing, lambda option: False))


def _overruled_by(path: str) -> Iterator[str]:
    """Name the options of a run that leave nothing of a field, when they are given."""
    kind = path.rpartition(".")[0]
    if path in _SAID_BY:
        yield _SAID_BY[path]
    if kind in (*ROLES, *_WORLD):
        yield kind
    if of_recipe(path):
        yield from ("pruner", "recipe_file")


def listing(registry: Registry, name: str | None) -> Answer:
    """Describe one preset in full, or all whose name begins so."""
    try:
        preset = registry.preset(name or "").thing
    except UnknownNameError:
        rows = preset_rows(registry, name)
        if not rows:
            raise
        return Answer({"presets": rows}, preset_table(rows))
    return Answer(preset.to_data(), preset.to_toml().rstrip())
