"""A network's forward pass as a graph, with the shape of every value in it."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.fx.proxy import TraceError

from gemkit.errors import CompactionError
from gemkit.models.blocks import Subsample
from gemkit.tensors import seeded

Shape = tuple[int, int, int]
_WHOLE = (
    nn.Conv2d,
    nn.Linear,
    nn.modules.batchnorm._BatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    Subsample,
)
"""Layers that stay whole in the graph, also when a library derives its own from them."""


class Trace:
    """What a forward pass does: its steps in order, and the layers and sizes they work with."""

    def __init__(self, model: nn.Module, shape: Shape) -> None:
        self.model = model
        tracer = _Tracer()
        try:
            graph = tracer.trace(model, _defaults(model))
        except Exception as error:  # a forward pass may do anything with what it is given
            reason = str(error).partition("\n")[0]
            raise CompactionError(
                f"the forward pass of {type(model).__name__} cannot be followed ({reason}), so "
                "nothing can be proved about its channels; use the ticket as it is, without "
                "--compact"
            ) from error
        self.nodes = list(graph.nodes)
        module = fx.GraphModule(model, graph)
        example = next(iter(model.parameters())).new_zeros((2, *shape))
        with torch.no_grad(), seeded(0, torch.device("cpu")):
            ShapeProp(module).propagate(example)

    def layer(self, node: fx.Node) -> nn.Module | None:
        """Return the layer that a step calls, if it calls one."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def sole(self, node: fx.Node) -> bool:
        """Tell whether nothing else uses the layer of this step, nor its parameters."""
        layer = self.layer(node)
        assert layer is not None
        path, owned = str(node.target), {id(own) for own in layer.parameters()}
        names = dict(self.model.named_parameters(remove_duplicate=False))
        calls = [other for other in self.nodes if self.layer(other) is layer]
        uses = [name for name, parameter in names.items() if id(parameter) in owned]
        taken = [str(other.target) for other in self.nodes if other.op == "get_attr"]
        return (
            len(calls) == 1
            and all(name.rpartition(".")[0] == path for name in uses)
            and not any(name.startswith(f"{path}.") for name in taken)
        )


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """Return the shape of a step's result for two images, or None where it is no tensor."""
    shape = getattr(node.meta.get("tensor_meta"), "shape", None)
    return None if shape is None else tuple(shape)


def traced(model: nn.Module, shape: Shape, *, training: bool) -> Trace:
    """Follow the forward pass in one of its two modes, in a copy of the model."""
    own = copy.deepcopy(model).cpu().train(training)
    return Trace(own, shape)


def _defaults(model: nn.Module) -> dict[str, Any]:
    """Return what a forward pass takes beside the images, as it is where nobody gives it."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}


class _Tracer(fx.Tracer):
    """Looks into modules as far as it gets; one it cannot follow is a single step."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, _WHOLE) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # noqa: ANN401
        before = set(self.graph.nodes)
        try:
            return super().call_module(m, forward, args, kwargs)
        except TraceError:
            for node in reversed(list(self.graph.nodes)):
                if node not in before:
                    self.graph.erase_node(node)
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)


def example_images(shape: Shape, count: int, dtype: torch.dtype) -> Tensor:
    """Draw images to compare two networks on, always the same."""
    rng = torch.Generator().manual_seed(0)
    return torch.randn(count, *shape, generator=rng, dtype=dtype)
