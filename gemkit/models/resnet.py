"""ResNets with four stages (He et al. 2016, section 4.1), whose shortcuts are convolutions.

The shortcuts are pruned and counted like every other layer.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from gemkit.hookspecs import hookimpl
from gemkit.models.blocks import PlainNet, Residual, Shape, chain
from gemkit.parts import ModelPart

_LARGE = 64
"""From this many pixels on, images take the stem of ImageNet where none is asked for."""


class ResNet(PlainNet):
    """A stem, four stages of residual blocks, global average pooling, one linear layer."""

    blocks: ClassVar[tuple[int, int, int, int]]
    expansion: ClassVar[int]

    width: int = Field(
        default=64, ge=1, le=1024, description="channels of the stem; others scale with it"
    )
    stem: Literal["auto", "cifar", "imagenet"] = Field(
        default="auto",
        description="the first layers: a 3 × 3 convolution ('cifar'), or a 7 × 7 one with stride 2 "
        f"and a pooling ('imagenet'); 'auto' takes the latter from {_LARGE} × {_LARGE} pixels on",
    )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build it for images of any size."""
        layers, channels = self._stem(shape), self.width
        for place, count in enumerate(self.blocks):
            middle, stride = self.width * 2**place, 1 if place == 0 else 2
            stage = nn.Sequential()
            for _ in range(count):
                stage.append(self._block(channels, middle, stride))
                channels, stride = middle * self.expansion, 1
            layers[f"layer{place + 1}"] = stage
        return chain(**layers, **self.head(channels, classes))

    def _stem(self, shape: Shape) -> dict[str, nn.Module]:
        """Make the first layers, which suit the size of the images."""
        large = self.stem == "imagenet" or (self.stem == "auto" and min(shape[1:]) >= _LARGE)
        size, stride = (7, 2) if large else (3, 1)
        layers: dict[str, nn.Module] = {
            "conv1": self.conv(shape[0], self.width, size, stride),
            "bn1": self.norm(self.width),
            "relu1": nn.ReLU(),
        }
        return layers | {"pool1": nn.MaxPool2d(3, 2, 1)} if large else layers

    def _block(self, inputs: int, middle: int, stride: int) -> nn.Module:
        """Make one block; the shortcut is a convolution wherever the shape changes."""
        outputs = middle * self.expansion
        shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            shortcut = chain(conv=self.conv(inputs, outputs, 1, stride), bn=self.norm(outputs))
        return Residual(self._change(inputs, middle, outputs, stride), shortcut, relu=True)

    def _change(self, inputs: int, middle: int, outputs: int, stride: int) -> nn.Module:
        """Make the layers beside the shortcut: two 3 × 3, or a 3 × 3 between two 1 × 1."""
        sizes = (3, 3) if self.expansion == 1 else (1, 3, 1)
        layers: dict[str, nn.Module] = {}
        for place, size in enumerate(sizes, start=1):
            last = place == len(sizes)
            out = outputs if last else middle
            # The first 3 × 3 convolution is the one that takes fewer pixels.
            step = stride if sizes.index(3) == place - 1 else 1
            layers[f"conv{place}"] = self.conv(inputs, out, size, step)
            layers[f"bn{place}"] = self.norm(out)
            if not last:
                layers[f"relu{place}"] = nn.ReLU()
            inputs = out
        return chain(**layers)


class ResNet18(ResNet):
    """ResNet-18: 11,164,352 weights for ten classes of small images."""

    name = "resnet18"
    blocks = (2, 2, 2, 2)
    expansion = 1


class ResNet50(ResNet):
    """ResNet-50: 25,502,912 weights for a thousand classes of large images."""

    name = "resnet50"
    blocks = (3, 4, 6, 3)
    expansion = 4


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Register the networks."""
    return [ResNet18, ResNet50]
