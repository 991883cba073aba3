"""Compact networks as files: safetensors with a hash, as tickets are, and never a pickle."""

import json
import os
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from torch import nn

from gemkit import ticket_file
from gemkit.compaction.shrinking import shrunk
from gemkit.compaction.smaller import Compact
from gemkit.errors import TicketError, some
from gemkit.ticket import Ticket, TicketInfo
from gemkit.ticket_file import Content, explain

Model = TypeVar("Model", bound=nn.Module)
_Size = Annotated[
    str, Field(pattern="^((in|out)_(channels|features)|groups|num_features|before|after)$")
]
_SETTINGS = TypeAdapter(dict[str, dict[_Size, Annotated[int, Field(ge=0)]]])
"""The attributes of layers that a file may set, and to what."""


def save_compact(small: Compact, path: str | os.PathLike[str]) -> None:
    """Write a compact network; `load_compact` puts it into a model like the one it was made of."""
    settings: dict[str, JsonValue] = {name: {**own} for name, own in small.settings.items()}
    about: dict[str, JsonValue] = {
        "compact": settings,
        "info": small.ticket.info.model_dump(mode="json"),
    }
    ticket_file.write(Content(small.ticket.mask, small.ticket.state, about), Path(path))


def load_compact(path: str | os.PathLike[str], model: Model) -> Model:
    """Return a copy of `model` made as small as the network in the file, with its weights.

    The file is trusted in nothing: sizes and tensors that do not fit each other are an error.
    """
    content = ticket_file.read(Path(path))
    try:
        settings = _SETTINGS.validate_python(content.info.get("compact"), strict=True)
        info = TicketInfo.model_validate_json(json.dumps(content.info.get("info")))
        small = shrunk(model, content.state, settings)
    except ValidationError as error:
        raise TicketError(
            f"{path} is no compact network ({explain(error)}); `gemkit compact` writes one"
        ) from error
    except AttributeError as error:
        raise TicketError(f"{path} belongs to another kind of network: {error}") from error
    small = Ticket(content.mask, content.state, info).apply(small)
    if torn := [name for name, layer in small.named_modules() if not _whole(layer)]:
        raise TicketError(f"{path} gives layers other sizes than their weights: {some(torn)}")
    return small


def _whole(layer: nn.Module) -> bool:
    """Tell whether a layer's attributes say what its tensors say."""
    if isinstance(layer, nn.Conv2d):
        sizes = layer.out_channels, layer.in_channels
        groups = max(1, layer.groups)
        even = layer.groups > 0 and not any(size % groups for size in sizes)
        return even and tuple(layer.weight.shape[:2]) == (sizes[0], sizes[1] // groups)
    if isinstance(layer, nn.Linear):
        return tuple(layer.weight.shape) == (layer.out_features, layer.in_features)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None:
        return len(layer.running_mean) == layer.num_features
    return True
