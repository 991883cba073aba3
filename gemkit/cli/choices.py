"""From the values of options to recipes and plans, and to the fields of networks."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemkit.cli.fields import Fields
from gemkit.errors import GemkitError, OptionError
from gemkit.files import read
from gemkit.models.custom import Custom
from gemkit.plan import Plan
from gemkit.recipe import ROLES, Recipe
from gemkit.registry import Registry
from gemkit.runs.specs import is_custom, validated


def make_recipe(
    registry: Registry,
    pruner: str,
    file: Path | None,
    roles: Mapping[str, str | None],
    fields: Fields,
) -> Recipe:
    """Make the recipe of a pruner or a file, with other parts and fields where they are given."""
    owners = (*ROLES, "rewind")
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
    """Make the plans of both phases; fine-tuning takes as many epochs as the search by default."""
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


def switches(registry: Registry, text: str, *, strip_bias: bool, bn: str | None) -> dict[str, Any]:
    """Say in a network's own fields what `--strip-bias` and `--bn` ask for."""
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
