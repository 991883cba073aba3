"""Narrow versions of the architectures that methods must cope with, small enough for tests."""

import timm
import torch
from torch import nn

from gemkit.models.cifar_resnet import ResNet20


def resnet20():
    return ResNet20().build((3, 32, 32), 10)


def vgg16(width=8):
    """VGG-16 for 32×32 images: 13 convolutions with batch norm, and one linear layer."""
    layers, channels = [], 3
    for factor in (1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8):
        if not factor:
            layers.append(nn.MaxPool2d(2))
            continue
        convolution = nn.Conv2d(channels, channels := factor * width, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10, bias=False)
    )


def mobilenet_v2():
    return timm.create_model("mobilenetv2_035", num_classes=10)


def vit(**options):
    sizes = {"img_size": 32, "embed_dim": 24, "depth": 3, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=10, **sizes, **options)


ARCHITECTURES = {
    "resnet20": resnet20,
    "vgg16": vgg16,
    "mobilenet_v2": mobilenet_v2,
    "vit": vit,
}


def build(name):
    torch.manual_seed(0)
    return ARCHITECTURES[name]()
