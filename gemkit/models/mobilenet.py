"""MobileNet-V2 for small images (Sandler et al. 2018), as the paper uses it.

The stem and the second stage keep the image size. A block that changes only the number of channels
has a convolution as its shortcut.
"""

from typing import ClassVar

from pydantic import Field
from torch import nn

from gemkit.models.blocks import PlainNet, Residual, Shape, require_size, sequential
from gemkit.models.part import ModelPart
from gemkit.plugins.markers import hookimpl

_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels at width 32, number of blocks, and stride of the first block."""
_FEATURES = 1280


class MobileNetV2(PlainNet):
    """MobileNet-V2: inverted residual blocks; 2,261,824 weights for ten classes."""

    name: ClassVar[str] = "mobilenet_v2"

    width: int = Field(
        default=32, ge=2, le=1024, description="channels of the stem; the rest scale with it"
    )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for images of any size."""
        require_size(self.name, shape, 1)
        channels, blocks = self.width, nn.Sequential()
        for expansion, width, count, first_stride in _STAGES:
            for index in range(count):
                stride = first_stride if index == 0 else 1
                blocks.append(self._block(channels, self._scaled(width), expansion, stride))
                channels = self._scaled(width)
        features = self._scaled(_FEATURES)
        return sequential(
            conv1=self.conv(shape[0], self.width, 3),
            bn1=self.norm(self.width),
            relu1=nn.ReLU(),
            blocks=blocks,
            conv2=self.conv(channels, features, 1),
            bn2=self.norm(features),
            relu2=nn.ReLU(),
            **self.head(features, classes),
        )

    def _scaled(self, channels: int) -> int:
        """Scale a number of channels from width 32 to `width`."""
        return channels * self.width // 32

    def _block(self, inputs: int, outputs: int, expansion: int, stride: int) -> nn.Module:
        """Make a block: 1 × 1 expansion, depthwise 3 × 3, 1 × 1 projection."""
        middle = inputs * expansion
        change = sequential(
            conv1=self.conv(inputs, middle, 1),
            bn1=self.norm(middle),
            relu1=nn.ReLU(),
            conv2=self.conv(middle, middle, 3, stride, groups=middle),
            bn2=self.norm(middle),
            relu2=nn.ReLU(),
            conv3=self.conv(middle, outputs, 1),
            bn3=self.norm(outputs),
        )
        if stride != 1:
            return change
        shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            shortcut = sequential(conv=self.conv(inputs, outputs, 1), bn=self.norm(outputs))
        return Residual(change, shortcut, relu=False)


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Register the network."""
    return [MobileNetV2]
