"""ResNets for small images (He et al. 2016, section 4.2), as the paper uses them.

Three stages of basic blocks with 16, 32 and 64 channels. Shortcuts that change the shape subsample
and zero-pad, so they have no weights.
"""

from itertools import pairwise
from typing import ClassVar

from pydantic import Field
from torch import nn

from gemkit.models.blocks import PlainNet, Residual, Shape, Subsample, require_size, sequential
from gemkit.models.part import ModelPart
from gemkit.plugins.markers import hookimpl


class CifarResNet(PlainNet):
    """A stem, three stages of `blocks` basic blocks, global average pooling, one linear layer."""

    blocks: ClassVar[int]

    width: int = Field(
        default=16, ge=1, le=1024, description="channels of the first stage; the rest scale with it"
    )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for images of any size."""
        require_size(self.name, shape, 1)
        stages = (self.width, 2 * self.width, 4 * self.width)
        widths = [self.width, *(width for width in stages for _ in range(self.blocks))]
        return sequential(
            conv1=self.conv(shape[0], self.width, 3),
            bn1=self.norm(self.width),
            relu1=nn.ReLU(),
            blocks=nn.Sequential(
                *(self._block(inputs, outputs) for inputs, outputs in pairwise(widths))
            ),
            **self.head(widths[-1], classes),
        )

    def _block(self, inputs: int, outputs: int) -> nn.Module:
        """Make a basic block: two 3 × 3 convolutions and a shortcut without weights."""
        stride = 1 if inputs == outputs else 2
        change = sequential(
            conv1=self.conv(inputs, outputs, 3, stride),
            bn1=self.norm(outputs),
            relu1=nn.ReLU(),
            conv2=self.conv(outputs, outputs, 3),
            bn2=self.norm(outputs),
        )
        shortcut = nn.Identity() if stride == 1 else Subsample(outputs - inputs, stride)
        return Residual(change, shortcut, relu=True)


class ResNet20(CifarResNet):
    """ResNet-20 for small images: 268,336 weights for ten classes."""

    name = "resnet20"
    blocks = 3


class ResNet32(CifarResNet):
    """ResNet-32 for small images: 461,872 weights for ten classes."""

    name = "resnet32"
    blocks = 5


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Register the networks."""
    return [ResNet20, ResNet32]
