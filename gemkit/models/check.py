"""Which models gemkit takes: unwrap known wrappers, and refuse other models with one sentence."""

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from gemkit.core.errors import ModelError, describe_error, some
from gemkit.core.memory import shortage
from gemkit.core.probe import in_mode
from gemkit.core.prunable import EMBEDDINGS, prunable_names
from gemkit.core.tensors import call_with

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
_SHARDED = "FullyShardedDataParallel"
_WRAP_IT = (
    "wrap it in a module whose forward takes one tensor of inputs and returns one tensor of outputs"
)


def check_instance(model: object) -> nn.Module:
    """Return a model; refuse what is no instance of `nn.Module`, or not a complete one."""
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else repr(type(model))
        raise ModelError(f"the model is {what}; give an instance of torch.nn.Module")
    if not hasattr(model, "_modules"):
        title = type(model).__name__
        raise ModelError(
            f"{title} is not initialized; let {title}.__init__ call super().__init__() first"
        )
    return model


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the network inside DataParallel, DDP, `torch.compile`, Fabric or AveragedModel."""
    model = check_instance(model)
    while True:
        inner: object = None
        if isinstance(model, _WRAPPERS) or type(model).__name__ == "_FabricModule":
            inner = model.module
        elif "_orig_mod" in model._modules:  # torch.compile, without importing its compiler
            inner = model._modules["_orig_mod"]
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_expanded(tensor: Tensor) -> bool:
    """Whether entries of a tensor share memory, so that it cannot be written."""
    return tensor.layout is torch.strided and any(
        size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


_UNSUITABLE: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (is_lazy, "lazy parameters, whose shapes are not known yet ({}); pass one batch through it"),
    (
        lambda own: hasattr(own, "placements"),
        "parameters that are sharded over processes ({}); give the network before it is sharded",
    ),
    (
        lambda own: own.is_meta,
        "parameters without memory, on the meta device ({}); allocate them with "
        "model.to_empty(device='cpu'), then draw or load their values",
    ),
    (
        lambda own: own.is_complex(),
        "complex parameters ({}), and gemkit prunes real numbers only; store the real and the "
        "imaginary part as two real parameters",
    ),
    (
        is_expanded,
        "expanded parameters, whose entries share memory ({}); replace them with their clone()",
    ),
)
"""Conditions on a parameter, and what to say; the first that is true is reported."""


def check_model(model: object) -> nn.Module:
    """Return the network without wrappers; refuse one that gemkit cannot prune or train."""
    own = unwrapped(check_instance(model))
    title = type(own).__name__
    if isinstance(own, torch.jit.ScriptModule):
        raise ModelError(
            f"{title} is a TorchScript module, which hides its layers; give the nn.Module it was "
            "made from"
        )
    if title == _SHARDED:
        raise ModelError(f"{title} is sharded over processes; give the network inside it")
    parameters = dict(own.named_parameters())
    for unsuitable, words in _UNSUITABLE:
        if names := [name for name, one in parameters.items() if unsuitable(one)]:
            raise ModelError(f"{title} has {words.format(some(names, 3))}")
    if names := [name for name, layer in own.named_modules() if _has_sparse_gradient(layer)]:
        raise ModelError(
            f"{title} has embeddings with sparse gradients ({some(names, 3)}), which gemkit's "
            "optimizers do not take; build them with sparse=False"
        )
    return own


def _has_sparse_gradient(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return False
    return layer.sparse and layer.weight.requires_grad


def own_copy(model: nn.Module) -> nn.Module:
    """Copy a model, to train the copy; its expanded buffers get memory of their own."""
    try:
        own = copy.deepcopy(model)
    except Exception as error:  # anything may be an attribute of a module
        prunable_names(model)  # refuses a layer that derives its weights, with a better sentence
        raise ModelError(
            f"{type(model).__name__} cannot be copied ({describe_error(error)}); remove attributes "
            "that copy.deepcopy refuses, such as locks, open files and tensors with a history"
        ) from error
    allocate_buffers_(own)
    return own


def allocate_buffers_(model: nn.Module) -> None:
    """Replace expanded buffers with copies that can be written."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and is_expanded(buffer):
                module._buffers[name] = buffer.clone(memory_format=torch.contiguous_format)


@torch.no_grad()
def blank_inputs(model: nn.Module, shape: tuple[int, ...], count: int) -> Tensor:
    """Return inputs of zeros: values or, if a network with embeddings takes none, tokens."""
    like = next(chain(model.parameters(), model.buffers()))
    values = torch.zeros((count, *shape), dtype=like.dtype, device=like.device)
    if any(isinstance(module, EMBEDDINGS) for module in model.modules()):
        try:
            with in_mode(model, training=False):
                model(values)
        except Exception as error:  # a forward pass may raise anything
            if shortage(error):
                raise
            return values.long()
    return values


@torch.no_grad()
def try_outputs(
    model: nn.Module,
    inputs: Tensor,
    *,
    training: bool,
    title: str | None = None,
    way_out: str = f"give data of the size it was built for, or {_WRAP_IT}",
) -> Tensor:
    """Call a model with a few inputs; refuse one that takes or returns something else.

    Modes, buffers and random generators are restored. `title` is the model's name in messages, and
    `way_out` what to do about inputs that it cannot take.
    """
    title, size = title or type(model).__name__, " × ".join(map(str, inputs.shape[1:]))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = [inputs.device] if inputs.device.type == "cuda" else []
    try:
        with in_mode(model, training=training), torch.random.fork_rng(devices):
            outputs: object = call_with(model, buffers, inputs)
    except Exception as error:  # a forward pass may raise anything
        raise ModelError(
            f"{title} cannot take a batch of inputs of {size} ({describe_error(error)}); {way_out}"
        ) from error
    if not isinstance(outputs, Tensor):
        when = "in training" if training else "in evaluation"
        raise ModelError(
            f"{title} returns a value of type {type(outputs).__name__} {when}, where gemkit needs "
            f"one tensor of logits; {_WRAP_IT}"
        )
    return outputs
