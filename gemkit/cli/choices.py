"""From the values of options to recipes, plans and parts."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from gemkit.cli.fields import Fields
from gemkit.errors import GemkitError, ModelError, OptionError
from gemkit.files import read
from gemkit.models.custom import Custom, is_address
from gemkit.options import from_data, report
from gemkit.parts import DatasetPart, ModelPart
from gemkit.plan import Plan
from gemkit.recipe import ROLES, Recipe
from gemkit.registry import Registry
from gemkit.wording import escaped

Model = TypeVar("Model", bound=BaseModel)
_TITLE = ("custom", "name", "network")
_WEIGHTS = {"pretrained": "weights of its library", "weights": "weights in a file"}
"""The fields of a network that name weights, and where those are."""


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


def validated(cls: type[Model], data: Mapping[str, Any], label: str) -> Model:
    """Validate plain data, leaving out what is None; `label` stands before every bad field."""
    known = {key: value for key, value in data.items() if value is not None}
    value, problems = from_data(cls, known, label=label, title=f"'{label}'")
    if value is None:
        raise report(f"{label} settings", problems)
    return value


def model_part(
    registry: Registry, spec: str | Mapping[str, Any], fields: Mapping[str, Any]
) -> ModelPart:
    """Build the part that stands for a network.

    Only a text, which somebody typed, may lead to code of their own; data from a file may not.
    """
    if isinstance(spec, str) and is_custom(registry, spec):
        return validated(Custom, {"function": spec, **fields}, "model")
    part = registry.build("models", spec, fields)
    assert isinstance(part, ModelPart)
    return part


def model_for(
    registry: Registry,
    said: Mapping[str, Any],
    given: str | None,
    fields: Mapping[str, Any],
    *,
    weights: bool = True,
) -> ModelPart:
    """Build the network that a file names, or the one given instead.

    A file alone runs no code, and takes no weights from elsewhere unless `weights` is False, which
    says that none are loaded anyway. Otherwise --model has to repeat what the file says; the
    file's other fields then hold.
    """
    if given is None and "custom" in said:
        raise ModelError(
            f"the network is built by {said['custom']!r}; a file alone runs no code, so if you "
            "trust that function, give --model with these very words"
        )
    if given is None and weights:
        _refuse_other_weights(said, fields)
    if given is not None and given == title_of(said):
        own = {key: value for key, value in said.items() if key not in _TITLE}
        fields = {**own, **fields}
    if given is None or given == title_of(said):
        fields = {**_before_prepare(registry, said), **fields}
    return model_part(registry, given or said, fields)


def _before_prepare(registry: Registry, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what older files leave out: their networks were not prepared for pruning."""
    name = said.get("name")
    known = registry.parts["models"].get(name) if isinstance(name, str) else None
    has_field = known is not None and "prepare" in known.thing.model_fields
    return {"prepare": False} if has_field and "prepare" not in said else {}


def title_of(said: Mapping[str, Any]) -> str:
    """Return what to type after --model for the network that a file names."""
    if "custom" in said:
        return str(said["custom"])
    return ":".join(str(said[key]) for key in ("name", "network") if key in said)


def needs_repeating(said: Mapping[str, Any]) -> bool:
    """Tell whether a file alone does not build this network: it runs code or takes weights."""
    return "custom" in said or any(said.get(field) for field in _WEIGHTS)


def _refuse_other_weights(said: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Refuse weights that are fetched, or read from elsewhere, on the word of a file."""
    for field, source in _WEIGHTS.items():
        if said.get(field) and field not in fields:
            title = escaped(title_of(said))
            raise ModelError(
                f"the network starts from {source} (model.{field} = {said[field]!r}); a file alone "
                f"fetches and reads no weights, so if you want that, give --model {title}"
            )


def is_custom(registry: Registry, text: str) -> bool:
    """Tell whether this is the address of a function, and not `name:argument` of a model."""
    name = text.partition(":")[0]
    known = name in registry.parts["models"] or ("models", name) in registry.contested
    return is_address(text) and not known


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


def dataset_part(
    registry: Registry,
    spec: str | Mapping[str, Any],
    fields: Mapping[str, Any],
    train_on: str | None = None,
) -> DatasetPart:
    """Build the part that stands for a data set."""
    shorthand = {} if train_on is None else {"train_on": train_on}
    part = registry.build("datasets", spec, {**shorthand, **fields})
    assert isinstance(part, DatasetPart)
    return part
