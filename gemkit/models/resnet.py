"""ResNets with four stages (He et al. 2016, section 4.1) and convolutional shortcuts.

Shortcuts are pruned and counted like every other layer.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from gemkit.models.blocks import PlainNet, Residual, Shape, require_size, sequential
from gemkit.models.part import ModelPart
from gemkit.plugins.markers import hookimpl

_LARGE = 64
"""Smallest image size for which `stem="auto"` chooses the ImageNet stem."""


class ResNet(PlainNet):
    """A stem, four stages of residual blocks, global average pooling, one linear layer."""

    blocks: ClassVar[tuple[int, int, int, int]]
    expansion: ClassVar[int]

    width: int = Field(
        default=64, ge=1, le=1024, description="channels of the stem; the rest scale with it"
    )
    stem: Literal["auto", "cifar", "imagenet"] = Field(
        default="auto",
        description="first layers: a 3 × 3 convolution ('cifar'), or a 7 × 7 one with stride 2 and "
        f"max pooling ('imagenet'); 'auto' is 'imagenet' from {_LARGE} × {_LARGE} pixels",
    )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for images of any size."""
        require_size(self.name, shape, 1)
        layers, channels = self._stem(shape), self.width
        for index, count in enumerate(self.blocks):
            middle, stride = self.width * 2**index, 1 if index == 0 else 2
            stage = nn.Sequential()
            for _ in range(count):
                stage.append(self._block(channels, middle, stride))
                channels, stride = middle * self.expansion, 1
            layers[f"layer{index + 1}"] = stage
        return sequential(**layers, **self.head(channels, classes))

    def _stem(self, shape: Shape) -> dict[str, nn.Module]:
        """Make the first layers."""
        large = self.stem == "imagenet" or (self.stem == "auto" and min(shape[1:]) >= _LARGE)
        size, stride = (7, 2) if large else (3, 1)
        layers: dict[str, nn.Module] = {
            "conv1": self.conv(shape[0], self.width, size, stride),
            "bn1": self.norm(self.width),
            "relu1": nn.ReLU(),
        }
        return layers | {"pool1": nn.MaxPool2d(3, 2, 1)} if large else layers

    def _block(self, inputs: int, middle: int, stride: int) -> nn.Module:
        """Make a block; its shortcut is a convolution if the shape changes."""
        outputs = middle * self.expansion
        shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            shortcut = sequential(conv=self.conv(inputs, outputs, 1, stride), bn=self.norm(outputs))
        return Residual(self._change(inputs, middle, outputs, stride), shortcut, relu=True)

    def _change(self, inputs: int, middle: int, outputs: int, stride: int) -> nn.Module:
        """Make the residual branch: two 3 × 3 convolutions, or a bottleneck 1 × 1, 3 × 3, 1 × 1."""
        sizes = (3, 3) if self.expansion == 1 else (1, 3, 1)
        layers: dict[str, nn.Module] = {}
        for index, size in enumerate(sizes, start=1):
            last = index == len(sizes)
            out = outputs if last else middle
            # The first 3 × 3 convolution has the stride.
            step = stride if sizes.index(3) == index - 1 else 1
            layers[f"conv{index}"] = self.conv(inputs, out, size, step)
            layers[f"bn{index}"] = self.norm(out)
            if not last:
                layers[f"relu{index}"] = nn.ReLU()
            inputs = out
        return sequential(**layers)


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
