"""Networks that gemkit did not write: built by other code, adapted and checked before training."""

from abc import abstractmethod
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from gemkit.core.errors import ModelError
from gemkit.core.prunable import WEIGHTED, prunable_names
from gemkit.core.text import number_of
from gemkit.models.blocks import Shape
from gemkit.models.check import check_model, try_outputs
from gemkit.models.part import ModelPart
from gemkit.models.prepare import prepare_


class ExternalNet(ModelPart):
    """A network that gemkit did not write, optionally without its biases and norm parameters."""

    strip_bias: bool = Field(
        default=False, description="remove the biases of convolutions and linear layers"
    )
    bn: Literal["affine", "plain"] = Field(
        default="affine",
        description="batch norm unchanged ('affine') or without learned scale and shift ('plain')",
    )
    prepare: bool = Field(
        default=False,
        description="let signal reach every layer at initialization: norm scales of 0 and layer "
        "scales near 0 become 1, weights near 0 are drawn again; loaded weights are not changed",
    )

    @property
    @abstractmethod
    def title(self) -> str:
        """The network's name in messages."""

    @property
    def loads_weights(self) -> bool:
        """Whether the network starts from pretrained weights."""
        return False

    @abstractmethod
    def create(self, shape: Shape, classes: int, *, with_weights: bool) -> nn.Module:
        """Create the network, with its pretrained weights if `with_weights`."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network with pretrained weights if requested, else with new ones."""
        model = self._adapt(self.create(shape, classes, with_weights=True), shape, classes)
        if self.prepare and not self.loads_weights:
            prepare_(model)
        return model

    def skeleton(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network without loading weights."""
        return self._adapt(self.create(shape, classes, with_weights=False), shape, classes)

    def _adapt(self, model: nn.Module, shape: Shape, classes: int) -> nn.Module:
        """Remove biases and norm parameters as configured, and check the network."""
        model = check_model(model)
        if self.strip_bias:
            strip_biases_(model)
        if self.bn == "plain":
            strip_norms_(model)
        prunable_names(model)  # raises an error if there are none
        check_forward(model, self.title, shape, classes)
        return model


def strip_biases_(model: nn.Module) -> None:
    """Remove the biases of convolutions, linear layers and attention."""
    for module in model.modules():
        if isinstance(module, WEIGHTED):
            module.bias = None
        elif isinstance(module, nn.MultiheadAttention):
            module.in_proj_bias = module.bias_k = module.bias_v = None  # type: ignore[assignment]


def strip_norms_(model: nn.Module) -> None:
    """Remove scale and shift of every batch norm, as if built with `affine=False`."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.affine = False
            module.weight = module.bias = None  # type: ignore[assignment]


def check_forward(model: nn.Module, title: str, shape: Shape, classes: int) -> None:
    """Pass two inputs of zeros through the network in training mode, and check its outputs.

    They are values, or tokens where the network takes no values. Which of them the data are is
    checked before training.
    """
    like, failed = next(model.parameters()), []
    way_out = "choose larger inputs or another network"
    for dtype in (like.dtype, torch.int64):
        inputs = torch.zeros(2, *shape, dtype=dtype, device=like.device)
        try:
            outputs = try_outputs(model, inputs, training=True, title=title, way_out=way_out)
            break
        except ModelError as error:
            failed.append(error)
    else:
        raise failed[0]
    if outputs.shape != (2, classes):
        raise ModelError(
            f"{title} returns a tensor of shape {tuple(outputs.shape)} for two inputs of "
            f"{format_shape(shape)}; gemkit needs logits for "
            f"{number_of(classes, 'class', 'classes')}: (2, {classes})"
        )


def format_shape(shape: Shape) -> str:
    """Format the shape of an input, as in 3 × 32 × 32."""
    return " × ".join(str(size) for size in shape)
