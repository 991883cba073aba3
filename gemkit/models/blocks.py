"""What the built-in networks share: two switches, their layers, and residual blocks."""

from collections import OrderedDict
from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from gemkit.errors import DataError
from gemkit.parts import ModelPart

Shape = tuple[int, int, int]


class PlainNet(ModelPart):
    """A network as the paper has it: no biases, and batch norm without parameters.

    Every trainable number is then prunable. Both can be switched on.
    """

    bn: Literal["plain", "affine"] = Field(
        default="plain", description="batch norm without ('plain') or with learned scale and shift"
    )
    bias: bool = Field(default=False, description="whether convolutions and classifier have biases")

    def conv(
        self, inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1
    ) -> nn.Conv2d:
        """Make a convolution that keeps the image's size, divided by the stride."""
        return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=self.bias)

    def norm(self, channels: int) -> nn.BatchNorm2d:
        """Make a batch norm."""
        return nn.BatchNorm2d(channels, affine=self.bn == "affine")

    def head(self, features: int, classes: int) -> dict[str, nn.Module]:
        """Make what ends a network: the average over the image, then one linear layer."""
        return {
            "average": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(features, classes, bias=self.bias),
        }


def chain(**layers: nn.Module) -> nn.Sequential:
    """Put named layers one after the other."""
    return nn.Sequential(OrderedDict(layers))


class Residual(nn.Module):
    """What comes in by a shortcut, plus the change a few layers make to it."""

    def __init__(self, change: nn.Module, shortcut: nn.Module, *, relu: bool) -> None:
        super().__init__()
        self.change, self.shortcut, self.relu = change, shortcut, relu

    def forward(self, x: Tensor) -> Tensor:
        """Add the two, and cut the sum off at zero where the family does so."""
        total: Tensor = self.change(x) + self.shortcut(x)
        return F.relu(total) if self.relu else total


class Subsample(nn.Module):
    """A shortcut without weights: every stride-th pixel, and channels of zeros around the old."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.before, self.after, self.stride = extra // 2, extra - extra // 2, stride

    def forward(self, x: Tensor) -> Tensor:
        """Drop pixels and add channels."""
        fewer = x[:, :, :: self.stride, :: self.stride]
        return F.pad(fewer, (0, 0, 0, 0, self.before, self.after))


def require_size(model: str, shape: Shape, least: int) -> None:
    """Refuse images that a network would shrink to nothing."""
    _, height, width = shape
    if min(height, width) < least:
        raise DataError(
            f"model '{model}' shrinks images on its way, so they must be {least} × {least} or "
            f"larger, not {height} × {width}; model 'lenet300' takes any size"
        )
