"""Tiny networks and data, on which a whole search takes milliseconds."""

import torch
from torch import Tensor, nn

from gemkit.data.source import Data
from gemkit.training.plan import Plan, Runtime

CPU = Runtime(device="cpu")
PLAN = Plan(epochs=3, batch_size=16, lr=0.5)
SHAPE = (2, 6, 6)
CLASSES = 3


def tiny_data(
    classes: int = CLASSES,
    shape: tuple[int, int, int] = SHAPE,
    samples: int = 32,
    seed: int = 0,
    targets: str = "classes",
) -> Data:
    """Return data whose classes can be learned: one template per class, plus noise.

    With other `targets`, "labels" or "values", there are as many of them as classes.
    """
    rng = torch.Generator().manual_seed(seed)
    templates = torch.randn(classes, *shape, generator=rng)
    labels = torch.arange(samples) % classes
    images = templates[labels] + 0.3 * torch.randn(samples, *shape, generator=rng)
    if targets == "classes":
        pair = (images, labels)
        return Data.of_tensors(train=pair, validation=pair, test=pair, classes=classes)
    values = torch.stack([(images - one).flatten(1).mean(1) for one in templates], 1)
    pair = (images, (values > 0).float() if targets == "labels" else values)
    return Data.of_tensors(train=pair, validation=pair, test=pair)


def tiny_net(classes: int = CLASSES, channels: int = 2, width: int = 6) -> nn.Sequential:
    """Build convolutions (one grouped, one depthwise), a norm and a linear head, from seed 0.

    The weights of `fresh_net` depend on the global random generator.
    """
    torch.manual_seed(0)
    return fresh_net(classes, channels, width)


def fresh_net(classes: int = CLASSES, channels: int = 2, width: int = 6) -> nn.Sequential:
    """Build the layers of `tiny_net` with newly drawn weights."""
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


def one_layer() -> nn.Sequential:
    """Build a network of one layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES))


def one_weight() -> nn.Sequential:
    """Build a network whose middle layer has a single weight."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(72, 1), nn.ReLU(), nn.Linear(1, 1), nn.Linear(1, CLASSES)
    )


class NoWeights(nn.Module):
    """A network with an empty layer between two ordinary ones."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(72, 4)
        self.nothing = nn.Linear(4, 1, bias=False)
        self.nothing.weight = nn.Parameter(torch.empty(0, 4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits; the empty layer is used and adds nothing."""
        hidden = torch.relu(self.body(images.flatten(1)))
        logits: Tensor = self.head(hidden) + self.nothing(hidden).sum()
        return logits


class IdleLayer(nn.Module):
    """A network with a layer that the forward pass does not use, like some auxiliary heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(72, CLASSES)
        self.idle = nn.Linear(3, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the first layer."""
        logits: Tensor = self.body(images.flatten(1))
        return logits


NETWORKS = {
    "one_layer": one_layer,
    "tiny_net": tiny_net,
    "one_weight": one_weight,
    "NoWeights": NoWeights,
    "IdleLayer": IdleLayer,
}
"""The networks of contracts, the simplest first; all take images of `SHAPE`."""
