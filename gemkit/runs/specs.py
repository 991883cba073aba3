"""Build plans, networks and data sets from plain data."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from gemkit.core.errors import ModelError
from gemkit.core.text import escaped
from gemkit.data.part import DatasetPart
from gemkit.models.custom import Custom, is_address, model_data
from gemkit.models.part import ModelPart
from gemkit.parts.options import from_data, report
from gemkit.parts.recipe import part_data
from gemkit.plugins.registry import Registry

Model = TypeVar("Model", bound=BaseModel)
_TITLE = ("custom", "name", "network")
_WEIGHTS = {"pretrained": "weights of its library", "weights": "weights in a file"}
"""Fields of a network that name weights, and where those weights are."""


def validated(cls: type[Model], data: Mapping[str, Any], label: str) -> Model:
    """Validate plain data without its None values; errors name a field as `label.field`."""
    known = {key: value for key, value in data.items() if value is not None}
    value, problems = from_data(cls, known, label=label, title=f"'{label}'")
    if value is None:
        raise report(f"{label} settings", problems)
    return value


def model_part(
    registry: Registry, spec: str | Mapping[str, Any], fields: Mapping[str, Any]
) -> ModelPart:
    """Return the part that builds a network.

    Only a string, which a user typed, may name code of the user; a table, which may come from a
    file, may not.
    """
    if isinstance(spec, str) and is_custom(registry, spec):
        return validated(Custom, {"function": spec, **fields}, "model")
    part = registry.build("models", spec, fields)
    assert isinstance(part, ModelPart)
    return part


def model_for(
    registry: Registry,
    recorded: Mapping[str, Any],
    given: str | None,
    fields: Mapping[str, Any],
    *,
    weights: bool = True,
) -> ModelPart:
    """Return the network that a file names, or the one given instead.

    A file alone runs no code and loads no weights: --model has to confirm such a network, and the
    file's other fields are then used. With `weights=False` no weights are loaded, so only code
    has to be confirmed.
    """
    if given is None and "custom" in recorded:
        raise ModelError(
            f"the network is built by {recorded['custom']!r}; a file alone runs no code, so if you "
            f"trust that function, give --model {escaped(model_argument(recorded))}"
        )
    if given is None and weights:
        _refuse_other_weights(recorded, fields)
    if given is not None and given == model_argument(recorded):
        own = {key: value for key, value in recorded.items() if key not in _TITLE}
        fields = {**own, **fields}
    return model_part(registry, given or recorded, fields)


def recorded_model(
    registry: Registry,
    recorded: Mapping[str, Any],
    given: str | None,
    fields: Mapping[str, Any],
    *,
    weights: bool = True,
) -> ModelPart:
    """Return the network that a ticket or a run's folder names, as `model_for` does.

    Older files lack the field `prepare`.
    """
    if given is None or given == model_argument(recorded):
        fields = {**_before_prepare(registry, recorded), **fields}
    return model_for(registry, recorded, given, fields, weights=weights)


def _before_prepare(registry: Registry, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of `prepare` for older files: their networks were not prepared."""
    name = recorded.get("name")
    known = registry.parts["models"].get(name) if isinstance(name, str) else None
    has_field = known is not None and "prepare" in known.thing.model_fields
    return {"prepare": False} if has_field and "prepare" not in recorded else {}


def model_argument(recorded: str | Mapping[str, Any]) -> str:
    """Return what to type after --model for the network that a file names."""
    if isinstance(recorded, str):
        return recorded
    if "custom" in recorded:
        return str(recorded["custom"])
    return ":".join(str(recorded[key]) for key in ("name", "network") if key in recorded)


def needs_confirmation(recorded: Mapping[str, Any]) -> bool:
    """Return whether --model has to confirm this network: it runs code or loads weights."""
    return "custom" in recorded or any(recorded.get(field) for field in _WEIGHTS)


def _refuse_other_weights(recorded: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Refuse weights that only a file asks to download or to read."""
    for field, source in _WEIGHTS.items():
        if recorded.get(field) and field not in fields:
            argument = escaped(model_argument(recorded))
            raise ModelError(
                f"the network starts from {source} (model.{field} = {recorded[field]!r}); a file "
                f"alone fetches and reads no weights, so if you want that, give --model {argument}"
            )


def is_custom(registry: Registry, text: str) -> bool:
    """Return whether a text names a function, rather than a model as `name:argument`."""
    name = text.partition(":")[0]
    known = name in registry.parts["models"] or ("models", name) in registry.contested
    return is_address(text) and not known


def dataset_part(
    registry: Registry,
    spec: str | Mapping[str, Any],
    fields: Mapping[str, Any],
    train_on: str | None = None,
) -> DatasetPart:
    """Return the part that loads a data set."""
    shorthand = {} if train_on is None else {"train_on": train_on}
    part = registry.build("datasets", spec, {**shorthand, **fields})
    assert isinstance(part, DatasetPart)
    return part


def full_model_data(part: ModelPart) -> dict[str, Any]:
    """Return a network as plain data, with every field that it has."""
    own = part_data(part)
    return model_data(part) | {key: own[key] for key in ("prepare",) if key in own}
