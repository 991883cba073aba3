"""Files of compact networks: safetensors with a hash, like tickets, and never a pickle."""

import json
import os
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from torch import nn

from gemkit.compaction.compact_network import Compact
from gemkit.compaction.slicing import resized_copy
from gemkit.core.errors import TicketError, some
from gemkit.core.tensor_file import explain
from gemkit.tickets import file as ticket_file
from gemkit.tickets.file import Content
from gemkit.tickets.info import TicketInfo
from gemkit.tickets.ticket import Ticket

Model = TypeVar("Model", bound=nn.Module)
_Size = Annotated[
    str, Field(pattern="^((in|out)_(channels|features)|groups|num_features|before|after)$")
]
_SETTINGS = TypeAdapter(dict[str, dict[_Size, Annotated[int, Field(ge=0)]]])
"""The layer attributes that a file may set, and their values."""


def save_compact(small: Compact, path: str | os.PathLike[str]) -> None:
    """Write a compact network, for `load_compact` with a model of the original architecture."""
    settings: dict[str, JsonValue] = {name: {**sizes} for name, sizes in small.settings.items()}
    metadata: dict[str, JsonValue] = {
        "compact": settings,
        "info": small.ticket.info.model_dump(mode="json"),
    }
    ticket_file.write(Content(small.ticket.mask, small.ticket.state, metadata), Path(path))


def load_compact(path: str | os.PathLike[str], model: Model) -> Model:
    """Return a copy of `model` with the sizes and weights of the compact network in the file.

    The file is untrusted: sizes and tensors that do not match are an error.
    """
    content = ticket_file.read(Path(path))
    try:
        settings = _SETTINGS.validate_python(content.info.get("compact"), strict=True)
        info = TicketInfo.model_validate_json(json.dumps(content.info.get("info")))
        small = resized_copy(model, content.state, settings)
    except ValidationError as error:
        raise TicketError(
            f"{path} is not a compact network ({explain(error)}); `gemkit compact` writes one"
        ) from error
    except AttributeError as error:
        raise TicketError(f"{path} belongs to another architecture: {error}") from error
    small = Ticket(content.mask, content.state, info).apply(small)
    if invalid := [name for name, layer in small.named_modules() if not _consistent(layer)]:
        raise TicketError(f"{path} gives layers other sizes than their weights: {some(invalid)}")
    return small


def _consistent(layer: nn.Module) -> bool:
    """Whether a layer's size attributes match its tensors."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        sizes = layer.out_channels, layer.in_channels
        groups = max(1, layer.groups)
        divisible = layer.groups > 0 and not any(size % groups for size in sizes)
        return divisible and tuple(layer.weight.shape[:2]) == (sizes[0], sizes[1] // groups)
    if isinstance(layer, nn.Linear):
        return tuple(layer.weight.shape) == (layer.out_features, layer.in_features)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None:
        return len(layer.running_mean) == layer.num_features
    return True
