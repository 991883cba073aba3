"""Networks that gemkit did not write: made elsewhere, fitted here, and tried before they are used.

Whatever is wrong with a network, its weights or the size of the images is then said before
anything is trained.
"""

from abc import abstractmethod
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from gemkit.errors import ModelError
from gemkit.kernels import WEIGHTED
from gemkit.models.blocks import Shape
from gemkit.parts import ModelPart
from gemkit.probe import in_mode
from gemkit.readiness import prepare_
from gemkit.tensors import call_with, prunable_names
from gemkit.wording import number_of


class ForeignNet(ModelPart):
    """A network of somebody else, with or without its biases and the parameters of its norms."""

    strip_bias: bool = Field(
        default=False, description="take the biases off convolutions and linear layers"
    )
    bn: Literal["affine", "plain"] = Field(
        default="affine",
        description="batch norm as it comes ('affine'), or without learned scale and shift",
    )
    prepare: bool = Field(
        default=False,
        description="let signal reach every layer from the start: norm scales of 0 and layer "
        "scales next to 0 become 1, weights next to 0 are drawn; loaded weights stay as they are",
    )

    @property
    @abstractmethod
    def title(self) -> str:
        """What to call the network in a message."""

    @property
    def loads_weights(self) -> bool:
        """Whether the network begins with weights that were trained before."""
        return False

    @abstractmethod
    def create(self, shape: Shape, classes: int, *, with_weights: bool) -> nn.Module:
        """Make the network, and fetch the weights that were asked for unless told not to."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build it with the weights that were asked for, else with freshly drawn ones."""
        model = self._fitted(self.create(shape, classes, with_weights=True), shape, classes)
        if self.prepare and not self.loads_weights:
            prepare_(model)
        return model

    def skeleton(self, shape: Shape, classes: int) -> nn.Module:
        """Build it without fetching any weights."""
        return self._fitted(self.create(shape, classes, with_weights=False), shape, classes)

    def _fitted(self, model: nn.Module, shape: Shape, classes: int) -> nn.Module:
        """Take off what is not wanted, and see whether the network can be used."""
        if self.strip_bias:
            strip_biases_(model)
        if self.bn == "plain":
            strip_norms_(model)
        prunable_names(model)  # an error where there are none
        try_out(model, self.title, shape, classes)
        return model


def strip_biases_(model: nn.Module) -> None:
    """Take the biases off convolutions, linear layers and attention; the rest of the keys stay."""
    for module in model.modules():
        if isinstance(module, WEIGHTED):
            module.bias = None
        elif isinstance(module, nn.MultiheadAttention):
            module.in_proj_bias = module.bias_k = module.bias_v = None  # type: ignore[assignment]


def strip_norms_(model: nn.Module) -> None:
    """Take scale and shift off every batch norm, as if it had been built with `affine=False`."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.affine = False
            module.weight = module.bias = None  # type: ignore[assignment]


@torch.no_grad()
def try_out(model: nn.Module, title: str, shape: Shape, classes: int) -> None:
    """Pass two blank images through, as in training; the network is left as it was."""
    size = size_text(shape)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with in_mode(model, training=True):
            answer: object = call_with(model, buffers, torch.zeros(2, *shape))
    except Exception as error:  # whatever somebody else's forward may raise
        raise ModelError(
            f"{title} cannot take images of {size}: {first_line(error)}; "
            "choose larger images or another network"
        ) from error
    if not isinstance(answer, Tensor):
        raise ModelError(
            f"{title} answers with something of type {type(answer).__name__} in training, where "
            "gemkit needs one tensor of logits"
        )
    if answer.shape != (2, classes):
        raise ModelError(
            f"{title} answers two images of {size} with a tensor of shape {tuple(answer.shape)}, "
            f"where gemkit needs logits for {number_of(classes, 'class', 'classes')}: (2, "
            f"{classes})"
        )


def size_text(shape: Shape) -> str:
    """Write the shape of an image as people do."""
    return " × ".join(str(size) for size in shape)


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    return f"{type(error).__name__}: {lines[0]}"
