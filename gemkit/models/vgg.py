"""VGG-16 for small images (Simonyan and Zisserman 2015), with batch norm and one linear layer."""

from typing import ClassVar

from pydantic import Field
from torch import nn

from gemkit.models.blocks import PlainNet, Shape, require_size, sequential
from gemkit.models.part import ModelPart
from gemkit.plugins.markers import hookimpl

_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""Channels (as multiples of the width) and convolutions before each of the five poolings."""


class Vgg16(PlainNet):
    """VGG-16: 13 convolutions and a linear layer; 14,715,584 weights for ten classes."""

    name: ClassVar[str] = "vgg16"

    width: int = Field(
        default=64, ge=1, le=1024, description="channels of the first stage; the rest scale with it"
    )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for images from 32 × 32, which it halves five times."""
        require_size(self.name, shape, 32)
        layers: dict[str, nn.Module] = {}
        channels, index = shape[0], 0
        for factor, count in _STAGES:
            for _ in range(count):
                index += 1
                layers[f"conv{index}"] = self.conv(channels, factor * self.width, 3)
                layers[f"bn{index}"] = self.norm(factor * self.width)
                layers[f"relu{index}"] = nn.ReLU()
                channels = factor * self.width
            layers[f"pool{index}"] = nn.MaxPool2d(2)
        return sequential(**layers, **self.head(channels, classes))


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Register the network."""
    return [Vgg16]
