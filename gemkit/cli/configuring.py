"""From the options of `gemkit run` to the configuration of a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemkit.cli.choices import make_plans, make_recipe, switches
from gemkit.cli.fields import Fields, sort_fields
from gemkit.collapse import CollapsePolicy
from gemkit.plan import Runtime
from gemkit.preset import Preset
from gemkit.recipe import ROLES, part_data
from gemkit.registry import Registry
from gemkit.runs.config import RunConfig, RunSettings, name_of, of_recipe
from gemkit.runs.specs import dataset_part, full_model_data, model_part, validated

KINDS = (*ROLES, "rewind", "model", "dataset", "search", "finetune", "")
"""Whose fields `-o` sets in a run; the recipe itself has no name."""

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

Given = Callable[[str], bool]
"""Whether the user gave an option, rather than its default."""


def config_of(
    registry: Registry,
    *,
    pruner: str,
    recipe_file: Path | None,
    roles: Mapping[str, str | None],
    fields: Fields,
    world: Mapping[str, Any],
    network: Mapping[str, Any],
    training: Mapping[str, Any],
    machine: Mapping[str, Any],
    seed: int,
    on_collapse: CollapsePolicy,
    settings: RunSettings,
) -> RunConfig:
    """Turn options into a configuration; anything wrong with one of them is an error."""
    recipe = make_recipe(registry, pruner, recipe_file, roles, fields)
    asked = switches(registry, world["model"], **network)
    model = model_part(registry, world["model"], {**asked, **fields["model"]})
    dataset = dataset_part(registry, world["dataset"], fields["dataset"], world["train_on"])
    search, finetune = make_plans(training, fields)
    return RunConfig(
        recipe=recipe.to_data(),
        model=full_model_data(model),
        dataset=part_data(dataset),
        density=recipe.density or training["density"],
        search=search,
        finetune=finetune,
        seed=seed,
        runtime=validated(Runtime, machine, "machine"),
        on_collapse=on_collapse,
        run=settings,
    )


def sorted_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run with the texts of `-o` sorted by kind."""
    return {**options, "fields": sort_fields(options["fields"], KINDS)}


def settings_of(
    world: Mapping[str, Any],
    plugins: Sequence[Path],
    **others: Any,  # noqa: ANN401 - other fields of RunSettings
) -> RunSettings:
    """Collect what says how a run is carried out."""
    own = {
        "data_dir": str(world["data_dir"]) if world["data_dir"] else None,
        "plugins": [str(file) for file in plugins],
    }
    return validated(RunSettings, own | others, "run")


def with_preset(preset: Preset, options: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """Return the options of a run as the preset has them, where `given` says there are no others.

    A part that is given takes the place of the preset's, with all its fields; so does a pruner, or
    a recipe file, with the whole recipe.
    """
    own, left = options["fields"], fields_left(preset, given)
    chosen = {**options, "fields": {kind: left.get(kind, {}) | own[kind] for kind in own}}
    if not given("pruner") and not given("recipe_file"):
        parts = {role: name for role, name in preset.parts().items() if not given(role)}
        chosen |= {"pruner": preset.pruner, "roles": {**options["roles"], **parts}}
    world = {kind: name_of(getattr(preset, kind)) for kind in _WORLD if not given(kind)}
    chosen["world"] = {**options["world"], **world}
    if not given("density"):
        chosen["training"] = {**options["training"], "density": preset.density}
    machine = preset.runtime.model_dump(exclude_unset=True)
    chosen["machine"] = options["machine"] | {
        name: value for name, value in machine.items() if not given(name)
    }
    kept = preset.run.model_dump(exclude_unset=True)
    chosen["settings"] = options["settings"].model_copy(
        update={name: value for name, value in kept.items() if not given(name)}
    )
    for name in ("seed", "on_collapse"):
        if not given(name):
            chosen[name] = getattr(preset, name)
    return chosen


def fields_left(preset: Preset, given: Given) -> Fields:
    """Return the fields of a preset that no given option overrules, by kind."""
    left: Fields = {}
    for path, value in preset.options().items():
        kind, _, field = path.rpartition(".")
        if not any(map(given, _overruled_by(path))):
            left.setdefault(kind, {})[field] = value
    return left


def _overruled_by(path: str) -> Iterator[str]:
    """Name the options of a run that leave nothing of a field, when they are given."""
    kind = path.rpartition(".")[0]
    if path in _SAID_BY:
        yield _SAID_BY[path]
    if kind in (*ROLES, *_WORLD):
        yield kind
    if of_recipe(path):
        yield from ("pruner", "recipe_file")
