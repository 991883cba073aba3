"""Tiny networks and data for tests that run the engine for real, in milliseconds."""

import torch
from torch import nn

from gemkit import Data, Plan, Runtime

CPU = Runtime(device="cpu")
REQUIRED = {"densities": {"densities": [0.9, 0.5, 0.7, 0.6]}}
"""What parts that cannot be used by name alone must be given to suit `tiny_net`."""
PLAN = Plan(epochs=3, batch_size=16, lr=0.5)


def tiny_data(classes=3, shape=(2, 6, 6), samples=32, seed=0):
    """Images whose class can be learned: a template each, plus noise."""
    rng = torch.Generator().manual_seed(seed)
    templates = torch.randn(classes, *shape, generator=rng)
    labels = torch.arange(samples) % classes
    images = templates[labels] + 0.3 * torch.randn(samples, *shape, generator=rng)
    pair = (images, labels)
    return Data.of_tensors(train=pair, validation=pair, test=pair, classes=classes)


def tiny_net(classes=3, channels=2, width=6):
    """Convolutions (one grouped, one depthwise), norm, and a linear head with bias."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, groups=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, groups=width, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )
