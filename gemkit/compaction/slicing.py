"""Slice tensors and modules to the kept channels, and put them back."""

import copy
from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

from gemkit.core.tensors import Tensors

Model = TypeVar("Model", bound=nn.Module)


def gather(tensors: Tensors, places: Tensors) -> Tensors:
    """Return the entries of every tensor at `places`; a tensor without places is unchanged."""
    return {
        name: tensor.flatten()[places[name]] if name in places else tensor
        for name, tensor in tensors.items()
    }


def scatter(tensors: Tensors, small: Tensors, places: Tensors) -> Tensors:
    """Return the tensors with the values of `small` at `places`; the inverse of `gather`."""
    result = {}
    for name, tensor in tensors.items():
        if name in places:
            flat = tensor.flatten().clone()
            flat[places[name]] = small[name].to(flat)
            result[name] = flat.reshape(tensor.shape)
        else:
            result[name] = small[name]
    return result


def resized_copy(model: Model, state: Tensors, settings: Mapping[str, Mapping[str, int]]) -> Model:
    """Return a copy of the model whose layers have the shapes of `state`.

    Forward pass, names and modes do not change.
    """
    small = copy.deepcopy(model)
    for path, sizes in settings.items():
        for name, size in sizes.items():
            setattr(small.get_submodule(path), name, size)
    current = small.state_dict()
    for name, tensor in state.items():
        if name not in current or current[name].shape != tensor.shape:
            path, _, short = name.rpartition(".")
            _replace_(small.get_submodule(path), short, tensor)
    return small


def _replace_(layer: nn.Module, name: str, values: Tensor) -> None:
    """Replace a layer's parameter or buffer, or add a parameter."""
    buffer = layer._buffers.get(name)
    if buffer is not None:
        layer._buffers[name] = values.to(buffer, copy=True)
        return
    like = layer._parameters[name] if layer._parameters.get(name) is not None else layer.weight
    assert isinstance(like, nn.Parameter)
    copied = values.to(like.detach(), copy=True)
    layer.register_parameter(name, nn.Parameter(copied, like.requires_grad))
