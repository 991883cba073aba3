"""Trace a network's forward pass to a graph with the shape of every value."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.fx.proxy import TraceError

from gemkit.core.errors import CompactionError
from gemkit.core.prunable import EMBEDDINGS
from gemkit.core.tensors import is_index, seeded
from gemkit.models.blocks import Subsample
from gemkit.models.check import blank_inputs

Shape = tuple[int, ...]
_LEAVES = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Linear,
    nn.modules.batchnorm._BatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    Subsample,
)
"""Layers, and their subclasses, that are single nodes of the graph."""


class Trace:
    """The nodes of a forward pass in order, with their layers and shapes."""

    def __init__(self, model: nn.Module, shape: Shape) -> None:
        self.model = model
        tracer = _Tracer()
        try:
            graph = tracer.trace(model, _defaults(model))
        except Exception as error:  # a forward pass may raise anything
            reason = str(error).partition("\n")[0]
            raise CompactionError(
                f"the forward pass of {type(model).__name__} cannot be traced ({reason}), so "
                "nothing can be proved about its channels; use the ticket without --compact"
            ) from error
        self.nodes = list(graph.nodes)
        module = fx.GraphModule(model, graph)
        example = blank_inputs(model, shape, 2)
        with torch.no_grad(), seeded(0, torch.device("cpu")):
            ShapeProp(module).propagate(example)

    def layer(self, node: fx.Node) -> nn.Module | None:
        """Return the layer that a node calls, if any."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def used_once(self, node: fx.Node) -> bool:
        """Whether only this node uses its layer and the layer's parameters."""
        layer = self.layer(node)
        assert layer is not None
        path, owned = str(node.target), {id(parameter) for parameter in layer.parameters()}
        names = dict(self.model.named_parameters(remove_duplicate=False))
        calls = [other for other in self.nodes if self.layer(other) is layer]
        uses = [name for name, parameter in names.items() if id(parameter) in owned]
        attributes = [str(other.target) for other in self.nodes if other.op == "get_attr"]
        return (
            len(calls) == 1
            and all(name.rpartition(".")[0] == path for name in uses)
            and not any(name.startswith(f"{path}.") for name in attributes)
        )


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """Return the shape of a node's result for two images, or None if it is not a tensor."""
    shape = getattr(node.meta.get("tensor_meta"), "shape", None)
    return None if shape is None else tuple(shape)


def traced(model: nn.Module, shape: Shape, *, training: bool) -> Trace:
    """Trace a copy of the model in training or evaluation mode."""
    return Trace(copy.deepcopy(model).cpu().train(training), shape)


def _defaults(model: nn.Module) -> dict[str, Any]:
    """Return the default values of the other arguments of a forward pass."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


class _Tracer(fx.Tracer):
    """Traces into modules as far as possible; a module that cannot be traced is a single node."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, _LEAVES) or super().is_leaf_module(m, module_qualified_name)

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


def example_inputs(model: nn.Module, shape: Shape, count: int) -> Tensor:
    """Draw inputs to compare two networks on, with a fixed seed: values in float64, or tokens."""
    rng = torch.Generator().manual_seed(0)
    if is_index(blank_inputs(model, shape, 1)):
        kinds = [one.num_embeddings for one in model.modules() if isinstance(one, EMBEDDINGS)]
        return torch.randint(min(kinds), (count, *shape), generator=rng)
    return torch.randn(count, *shape, generator=rng, dtype=torch.float64)
