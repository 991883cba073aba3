"""Turn the options of a command into recipes, plans and the configuration of a run."""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemkit.core.atomic_io import read
from gemkit.core.errors import GemkitError, OptionError, did_you_mean
from gemkit.models.custom import Custom
from gemkit.parts.recipe import ROLES, TABLES, Recipe, part_data
from gemkit.plugins.registry import Registry
from gemkit.presets.preset import Preset
from gemkit.runs.config import (
    USUAL,
    PartData,
    RunConfig,
    RunSettings,
    is_recipe_field,
    name_of,
)
from gemkit.runs.specs import dataset_part, full_model_data, is_custom, model_part, validated
from gemkit.training.plan import CollapsePolicy, Plan, Runtime
from gemkit.training.task import task_from

Fields = dict[str, dict[str, Any]]
"""Kind -> field -> value; fields without a kind, if allowed, are under the empty string."""

KINDS = (*ROLES, *TABLES, "model", "dataset", "search", "finetune", "")
"""The kinds whose fields `-o` sets in a run; the recipe itself is the empty string."""

_WORLD = ("model", "dataset")
_OPTION_OF = {
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
"""The option of `gemkit run` that sets the same as a field."""

Given = Callable[[str], bool]
"""Returns whether the user gave an option."""


def sort_fields(texts: Iterable[str], kinds: Sequence[str]) -> Fields:
    """Parse the values of `-o` and group them by kind; a later value replaces an earlier one."""
    fields: Fields = {kind: {} for kind in kinds}
    for text in texts:
        path, equals, value = text.partition("=")
        kind, _, field = path.strip().rpartition(".")
        if not equals or not field or (not kind and "" not in kinds):
            example = "regularizer.weight=1e-3" if "regularizer" in kinds else "model.width=8"
            raise OptionError(f"-o {text}: write kind.field=value, for example -o {example}")
        if kind not in fields:
            raise OptionError(
                f"-o {text}: there is no kind '{kind}'{did_you_mean(kind, filter(None, kinds))}"
            )
        fields[kind][field] = parse_value(value.strip())
    return fields


def parse_value(text: str) -> Any:  # noqa: ANN401 - any TOML value
    """Parse a TOML value (1e-4, true, [0.5, 0.75]); anything else is a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A line break could add a second key.
    return parsed["value"] if len(parsed) == 1 else text


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
    objective: PartData = USUAL,
    metric: str | None = None,
    everywhere: bool = False,
) -> RunConfig:
    """Turn the options of `gemkit run` into a configuration, and validate them.

    With `everywhere`, the search minimizes the objective of the run, whatever its recipe says.
    """
    recipe = make_recipe(registry, pruner, recipe_file, roles, fields)
    if everywhere:
        recipe = recipe.model_copy(update={"objective": None})
    flags = network_fields(registry, world["model"], **network)
    model = model_part(registry, world["model"], {**flags, **fields["model"]})
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
        objective=part_data(task_from(registry, objective, metric).objective),
        metric=metric,
    )


def sorted_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the values of `-o` parsed and grouped by kind."""
    return {**options, "fields": sort_fields(options["fields"], KINDS)}


def settings_of(
    world: Mapping[str, Any],
    plugins: Sequence[Path],
    **others: Any,  # noqa: ANN401 - other fields of RunSettings
) -> RunSettings:
    """Return the settings of a run that do not change its ticket."""
    own = {
        "data_dir": str(world["data_dir"]) if world["data_dir"] else None,
        "plugins": [str(file) for file in plugins],
    }
    return validated(RunSettings, own | others, "run")


def with_preset(preset: Preset, options: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """Return the options of a run, with the values of a preset for those that were not given.

    A part that was given replaces that of the preset with all its fields; a pruner or a recipe file
    replaces the whole recipe.
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
    settings = preset.run.model_dump(exclude_unset=True)
    chosen["settings"] = options["settings"].model_copy(
        update={name: value for name, value in settings.items() if not given(name)}
    )
    if not callable(preset.objective):
        chosen["objective"] = preset.objective
    if not given("metric"):
        chosen["metric"] = preset.metric
    for name in ("seed", "on_collapse"):
        if not given(name):
            chosen[name] = getattr(preset, name)
    return chosen


def fields_left(preset: Preset, given: Given) -> Fields:
    """Return the fields of a preset that no given option replaces, by kind."""
    left: Fields = {}
    for path, value in preset.options().items():
        kind, _, field = path.rpartition(".")
        if not any(map(given, _replaced_by(path))):
            left.setdefault(kind, {})[field] = value
    return left


def _replaced_by(path: str) -> Iterator[str]:
    """Yield the options of a run that replace a field of a preset."""
    kind = path.rpartition(".")[0]
    if path in _OPTION_OF:
        yield _OPTION_OF[path]
    if kind in (*ROLES, *_WORLD):
        yield kind
    if is_recipe_field(path):
        yield from ("pruner", "recipe_file")


def make_recipe(
    registry: Registry,
    pruner: str,
    file: Path | None,
    roles: Mapping[str, str | None],
    fields: Fields,
) -> Recipe:
    """Return the recipe of a pruner or a file, with the given parts and fields replaced."""
    owners = (*ROLES, *TABLES)
    options = {
        f"{owner}.{field}": value for owner in owners for field, value in fields[owner].items()
    }
    options |= fields[""]
    parts = {role: name for role, name in roles.items() if name is not None}
    if file is None:
        return registry.recipe(pruner, parts=parts, options=options)
    try:
        return registry.recipe(read_toml(file), parts=parts, options=options)
    except GemkitError as error:
        raise type(error)(f"recipe {file}: {error}") from error


def read_toml(file: Path) -> dict[str, Any]:
    """Read a recipe file."""
    way_out = "`gemkit show gem_miner` prints one to start from"
    try:
        return tomllib.loads(read(file).decode())
    except OSError as error:
        raise OptionError(f"cannot be read, {error.strerror}; {way_out}") from error
    except (ValueError, RecursionError) as error:  # no TOML, or no text at all
        raise OptionError(f"is not valid TOML, {error}; {way_out}") from error


def make_plans(training: Mapping[str, Any], fields: Fields) -> tuple[Plan, Plan]:
    """Return the plans of both phases; fine-tuning has as many epochs as the search by default."""
    search = validated(
        Plan,
        {
            "epochs": training["epochs"],
            "batch_size": training["batch_size"],
            "lr": training["lr"],
            "on_nan": training.get("on_nan"),
            "on_no_signal": training.get("on_no_signal"),
            "allow_ties": training.get("allow_ties"),
        }
        | fields["search"],
        "search",
    )
    epochs = training["finetune_epochs"]
    finetune = validated(
        Plan,
        {
            "epochs": search.epochs if epochs is None else epochs,
            "batch_size": training["batch_size"],
            "lr": training["finetune_lr"],
            "on_nan": training.get("on_nan"),
        }
        | fields["finetune"],
        "finetune",
    )
    return search, finetune


def network_fields(
    registry: Registry, text: str, *, strip_bias: bool, bn: str | None
) -> dict[str, Any]:
    """Translate `--strip-bias` and `--bn` into fields of a network."""
    name = text.partition(":")[0]
    part = Custom if is_custom(registry, text) else registry.part("models", name).thing
    fields: dict[str, Any] = {}
    if strip_bias:
        fields |= {"strip_bias": True} if "strip_bias" in part.model_fields else {"bias": False}
    if bn is not None:
        fields["bn"] = bn
    for field in fields:
        if field not in part.model_fields:
            flag = "--bn" if field == "bn" else "--strip-bias"
            raise OptionError(
                f"{flag} does not apply to model '{name}', which has no field '{field}'; "
                "leave it out"
            )
    return fields
