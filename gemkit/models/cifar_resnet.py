"""ResNets for small images (He et al. 2016, section 4.2), as the paper uses them.

Three stages of basic blocks with 16, 32 and 64 channels; shortcuts that change shape subsample
and pad with zeros, so they hold no weights. No biases, and batch norm without affine parameters:
every trainable number is prunable. ResNet-20 for ten classes has 268,336 weights.
"""

from itertools import pairwise
from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from gemkit.hookspecs import hookimpl
from gemkit.parts import ModelPart


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut without weights."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, affine: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs, affine=affine)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs, affine=affine)
        self.stride, self.extra = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Add the block's change to what came in."""
        change = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride != 1 or self.extra:
            before = self.extra // 2
            x = F.pad(
                x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.extra - before)
            )
        return F.relu(change + x)


class CifarResNet(nn.Module):
    """A stem, three stages of `blocks` basic blocks, global average pooling, one linear layer."""

    def __init__(self, channels: int, classes: int, blocks: int, *, affine: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16, affine=affine)
        widths = [16, *(width for width in (16, 32, 64) for _ in range(blocks))]
        self.blocks = nn.Sequential(
            *(
                BasicBlock(inputs, outputs, 1 if inputs == outputs else 2, affine=affine)
                for inputs, outputs in pairwise(widths)
            )
        )
        self.fc = nn.Linear(64, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits."""
        features = self.blocks(F.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(features.mean(dim=(2, 3)))
        return logits


class ResNet20(ModelPart):
    """ResNet-20 for small images: 268,336 weights for ten classes."""

    name = "resnet20"

    bn: Literal["plain", "affine"] = Field(
        default="plain", description="batch norm without or with trainable scale and shift"
    )

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """Build it for images of any size."""
        return CifarResNet(shape[0], classes, blocks=3, affine=self.bn == "affine")


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Register the networks."""
    return [ResNet20]
