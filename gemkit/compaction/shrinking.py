"""A network with less in it: the same modules, holding only what stays."""

import copy
from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

from gemkit.tensors import Tensors

Model = TypeVar("Model", bound=nn.Module)


def taken(tensors: Tensors, places: Tensors) -> Tensors:
    """Return what stays of every tensor; one without places stays whole."""
    return {
        name: tensor.flatten()[places[name]] if name in places else tensor
        for name, tensor in tensors.items()
    }


def put_back(tensors: Tensors, small: Tensors, places: Tensors) -> Tensors:
    """Return the tensors with what stayed as it is in `small`, and the rest as it was."""
    whole = {}
    for name, tensor in tensors.items():
        if name in places:
            own = tensor.flatten().clone()
            own[places[name]] = small[name].to(own)
            whole[name] = own.reshape(tensor.shape)
        else:
            whole[name] = small[name]
    return whole


def shrunk(model: Model, state: Tensors, settings: Mapping[str, Mapping[str, int]]) -> Model:
    """Return a copy of the model whose layers are just large enough for `state`.

    Only layers change; what the model does with them, its names and its modes stay.
    """
    small = copy.deepcopy(model)
    for path, sizes in settings.items():
        for name, size in sizes.items():
            setattr(small.get_submodule(path), name, size)
    own = small.state_dict()
    for name, tensor in state.items():
        if name not in own or own[name].shape != tensor.shape:
            path, _, short = name.rpartition(".")
            _replace_(small.get_submodule(path), short, tensor)
    return small


def _replace_(layer: nn.Module, name: str, values: Tensor) -> None:
    """Give a layer another tensor under this name, or its first."""
    buffer = layer._buffers.get(name)
    if buffer is not None:
        layer._buffers[name] = values.to(buffer, copy=True)
        return
    like = layer._parameters[name] if layer._parameters.get(name) is not None else layer.weight
    assert isinstance(like, nn.Parameter)
    own = values.to(like.detach(), copy=True)
    layer.register_parameter(name, nn.Parameter(own, like.requires_grad))
