"""VGG-16 for small images (Simonyan and Zisserman 2015), with norms and a single linear layer."""

from typing import ClassVar

from pydantic import Field
from torch import nn

from gemkit.hookspecs import hookimpl
from gemkit.models.blocks import PlainNet, Shape, chain, require_size
from gemkit.parts import ModelPart

_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""Channels, as multiples of the width, and convolutions before each of the five poolings."""


class Vgg16(PlainNet):
    """VGG-16: 13 convolutions and a linear layer; 14,715,584 weights for ten classes."""

    name: ClassVar[str] = "vgg16"

    width: int = Field(
        default=64, ge=1, le=1024, description="channels of the first stage; others scale with it"
    )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build it for images of 32 × 32 and up, which it halves five times."""
        require_size(self.name, shape, 32)
        layers: dict[str, nn.Module] = {}
        channels, place = shape[0], 0
        for factor, count in _STAGES:
            for _ in range(count):
                place += 1
                layers[f"conv{place}"] = self.conv(channels, factor * self.width, 3)
                layers[f"bn{place}"] = self.norm(factor * self.width)
                layers[f"relu{place}"] = nn.ReLU()
                channels = factor * self.width
            layers[f"pool{place}"] = nn.MaxPool2d(2)
        return chain(**layers, **self.head(channels, classes))


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Register the network."""
    return [Vgg16]
