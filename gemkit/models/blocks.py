"""Base class and blocks of the built-in networks."""

from collections import OrderedDict
from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from gemkit.core.errors import DataError
from gemkit.data.source import Data
from gemkit.models.part import ModelPart

Shape = tuple[int, ...]


class ValueNet(ModelPart):
    """A network that takes values, and no tokens."""

    def check_data(self, data: Data) -> None:
        """Refuse tokens."""
        if data.indices:
            raise DataError(
                f"model '{self.name}' takes values, and the inputs of data set '{data.name}' are "
                "int64, so they count as tokens; model 'transformer' takes tokens"
            )


class PlainNet(ValueNet):
    """A network as in the paper: by default no biases, and batch norm without scale and shift.

    Every trainable parameter is then prunable.
    """

    bn: Literal["plain", "affine"] = Field(
        default="plain", description="batch norm without ('plain') or with learned scale and shift"
    )
    bias: bool = Field(default=False, description="give convolutions and classifier biases")

    def conv(
        self, inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1
    ) -> nn.Conv2d:
        """Make a convolution with "same" padding; the stride divides the image size."""
        return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=self.bias)

    def norm(self, channels: int) -> nn.BatchNorm2d:
        """Make a batch norm layer."""
        return nn.BatchNorm2d(channels, affine=self.bn == "affine")

    def norm1d(self, channels: int) -> nn.BatchNorm1d:
        """Make a batch norm layer for vectors and signals."""
        return nn.BatchNorm1d(channels, affine=self.bn == "affine")

    def head(self, features: int, classes: int) -> dict[str, nn.Module]:
        """Make the head: global average pooling and one linear layer."""
        return {
            "average": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(features, classes, bias=self.bias),
        }


def sequential(**layers: nn.Module) -> nn.Sequential:
    """Make an `nn.Sequential` of named layers."""
    return nn.Sequential(OrderedDict(layers))


class Residual(nn.Module):
    """A residual block: `change(x) + shortcut(x)`, then a ReLU if `relu`."""

    def __init__(self, change: nn.Module, shortcut: nn.Module, *, relu: bool) -> None:
        super().__init__()
        self.change, self.shortcut, self.relu = change, shortcut, relu

    def forward(self, x: Tensor) -> Tensor:
        """Add both branches."""
        total: Tensor = self.change(x) + self.shortcut(x)
        return F.relu(total) if self.relu else total


class Subsample(nn.Module):
    """A shortcut without weights: subsample pixels by `stride`, and pad `extra` zero channels."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.before, self.after, self.stride = extra // 2, extra - extra // 2, stride

    def forward(self, x: Tensor) -> Tensor:
        """Subsample pixels and pad channels."""
        subsampled = x[:, :, :: self.stride, :: self.stride]
        return F.pad(subsampled, (0, 0, 0, 0, self.before, self.after))


def require_size(model: str, shape: Shape, least: int) -> None:
    """Refuse images that are too small for the poolings and strides of a network."""
    if len(shape) != 3:
        raise DataError(f"model '{model}' takes images, not inputs of shape {list(shape)}")
    _, height, width = shape
    if min(height, width) < least:
        raise DataError(
            f"model '{model}' needs images of {least} × {least} or larger, not {height} × {width}; "
            "model 'lenet300' takes any size"
        )
