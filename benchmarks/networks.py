"""The networks whose speed is measured, each with the images of a step."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import timm
import torch
from torch import Tensor, nn

from gemkit import load_plugins
from gemkit.models.part import ModelPart

Batch = tuple[Tensor, Tensor]
CLASSES = 10


class Setting(NamedTuple):
    """A network, and the images of a step."""

    build: Callable[[], nn.Module]
    batch: int
    size: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return (3, self.size, self.size)

    def images(self, count: int | None = None) -> Batch:
        """Make images up: what they show makes no difference to time."""
        count = count or self.batch
        images = torch.randn(count, *self.shape).contiguous(memory_format=torch.channels_last)
        return images, torch.arange(count) % CLASSES


def own(size: int, name: str, **fields: object) -> nn.Module:
    part = load_plugins(only=[]).build("models", {"name": name, **fields})
    assert isinstance(part, ModelPart)
    return part.build((3, size, size), CLASSES)


def vit_tiny() -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=CLASSES)


SETTINGS = {
    "resnet20": Setting(lambda: own(32, "resnet20"), 128, 32),
    "vgg16": Setting(lambda: own(32, "vgg16"), 64, 32),
    "vgg16 batch 8": Setting(lambda: own(32, "vgg16"), 8, 32),
    "mobilenet_v2": Setting(lambda: own(32, "mobilenet_v2"), 64, 32),
    "timm resnet50": Setting(lambda: timm.create_model("resnet50", num_classes=CLASSES), 16, 64),
    "timm vit_tiny": Setting(vit_tiny, 64, 64),
}
WIDTHS = (8, 16, 32, 64)
SETTINGS |= {
    f"resnet20 width {width}": Setting(partial(own, 16, "resnet20", width=width), 64, 16)
    for width in WIDTHS
}
