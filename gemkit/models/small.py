"""Networks small enough to search in seconds on a laptop: for the demo, tests and tutorials."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from gemkit.errors import DataError
from gemkit.hookspecs import hookimpl
from gemkit.parts import ModelPart


class Conv4(ModelPart):
    """Four 3 × 3 convolutions, two poolings and a linear classifier; images of 4 × 4 and up."""

    name: ClassVar[str] = "conv4"

    width: int = Field(default=16, ge=1, le=1024, description="channels of the first convolution")
    bn: Literal["plain", "affine"] = Field(
        default="plain", description="batch norm without ('plain') or with learned scale and shift"
    )
    bias: bool = Field(default=False, description="whether convolutions and classifier have biases")

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """Build it for images of (channels, height, width)."""
        channels, height, width = shape
        if min(height, width) < 4:
            raise DataError(
                f"model 'conv4' halves images twice, so they must be 4 × 4 or larger, not "
                f"{height} × {width}; model 'lenet300' takes any size"
            )
        net = nn.Sequential()
        for place, factor in enumerate((1, 2, 4, 4), start=1):
            out = factor * self.width
            net.add_module(f"conv{place}", nn.Conv2d(channels, out, 3, padding=1, bias=self.bias))
            net.add_module(f"bn{place}", nn.BatchNorm2d(out, affine=self.bn == "affine"))
            net.add_module(f"relu{place}", nn.ReLU())
            if place % 2 == 0:
                net.add_module(f"pool{place}", nn.MaxPool2d(2))
            channels = out
        net.add_module("average", nn.AdaptiveAvgPool2d(1))
        net.add_module("flatten", nn.Flatten())
        net.add_module("classifier", nn.Linear(channels, classes, bias=self.bias))
        return net


class LeNet300(ModelPart):
    """LeNet-300-100: pixels, 300 units, 100 units, classes; no convolution. LeCun et al. (1998)."""

    name: ClassVar[str] = "lenet300"

    bias: bool = Field(default=False, description="whether the layers have biases")

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """Build it for images of (channels, height, width)."""
        channels, height, width = shape
        net = nn.Sequential()
        net.add_module("flatten", nn.Flatten())
        net.add_module("fc1", nn.Linear(channels * height * width, 300, bias=self.bias))
        net.add_module("relu1", nn.ReLU())
        net.add_module("fc2", nn.Linear(300, 100, bias=self.bias))
        net.add_module("relu2", nn.ReLU())
        net.add_module("classifier", nn.Linear(100, classes, bias=self.bias))
        return net


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Offer the small networks."""
    return [Conv4, LeNet300]
