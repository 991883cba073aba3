"""From plain data to plans, networks and data sets."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from gemkit.errors import ModelError
from gemkit.models.custom import Custom, is_address, model_data
from gemkit.options import from_data, report
from gemkit.parts import DatasetPart, ModelPart
from gemkit.recipe import part_data
from gemkit.registry import Registry
from gemkit.wording import escaped

Model = TypeVar("Model", bound=BaseModel)
_TITLE = ("custom", "name", "network")
_WEIGHTS = {"pretrained": "weights of its library", "weights": "weights in a file"}
"""The fields of a network that name weights, and where those are."""


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
    return model_part(registry, given or said, fields)


def recorded_model(
    registry: Registry,
    said: Mapping[str, Any],
    given: str | None,
    fields: Mapping[str, Any],
    *,
    weights: bool = True,
) -> ModelPart:
    """Build the network that a ticket or a run's folder names, as `model_for` does.

    Older ones leave out what is now a field.
    """
    if given is None or given == title_of(said):
        fields = {**_before_prepare(registry, said), **fields}
    return model_for(registry, said, given, fields, weights=weights)


def _before_prepare(registry: Registry, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what older files leave out: their networks were not prepared for pruning."""
    name = said.get("name")
    known = registry.parts["models"].get(name) if isinstance(name, str) else None
    has_field = known is not None and "prepare" in known.thing.model_fields
    return {"prepare": False} if has_field and "prepare" not in said else {}


def title_of(said: str | Mapping[str, Any]) -> str:
    """Return what to type after --model for the network that a file names."""
    if isinstance(said, str):
        return said
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


def full_model_data(part: ModelPart) -> dict[str, Any]:
    """Return what a configuration says about a network, with every field that it has."""
    own = part_data(part)
    return model_data(part) | {key: own[key] for key in ("prepare",) if key in own}
