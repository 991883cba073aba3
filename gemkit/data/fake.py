"""A made-up data set of any size: for tests, and for trying things out in seconds."""

from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field

from gemkit.data.source import Data
from gemkit.data.splits import split_stratified
from gemkit.errors import DataError
from gemkit.hookspecs import hookimpl
from gemkit.limits import MOST_VALUES
from gemkit.parts import DatasetPart
from gemkit.tensors import generator


class Fake(DatasetPart):
    """Made-up images: one random picture per class, each sample that picture under noise.

    Easy to learn, the same on every machine, split 60/20/20. For tests, not for results.
    """

    name: ClassVar[str] = "fake"

    samples: int = Field(default=256, ge=10, le=1_000_000, description="images, all splits")
    size: int = Field(default=8, ge=1, le=1024, description="height and width in pixels")
    channels: int = Field(default=3, ge=1, le=64, description="colour channels")
    classes: int = Field(default=4, ge=2, le=10_000, description="number of classes")
    noise: float = Field(
        default=0.25, ge=0, le=100, description="standard deviation of the noise; pictures span 1"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="draws pictures, noise and split")

    def check_size(self) -> None:
        """Refuse more images than should be drawn: a ticket may ask for any number."""
        values = (self.samples + self.classes) * self.channels * self.size**2
        if values > MOST_VALUES:
            raise DataError(
                f"data set '{self.name}' would have {values:,} values, and at most "
                f"{MOST_VALUES:,} are drawn; lower dataset.samples, size, channels or classes"
            )

    def load(self, folder: Path | None) -> Data:
        """Draw it; `folder` is not needed."""
        self.check_size()
        rng = generator(self.seed, "fake data")
        shape = (self.channels, self.size, self.size)
        pictures = torch.rand((self.classes, *shape), generator=rng)
        labels = torch.arange(self.samples) % self.classes
        noise = torch.randn((self.samples, *shape), generator=rng) * self.noise
        images = (pictures[labels] + noise).clamp(0, 1).mul(255).round().byte()
        train, validation, test = (
            (images[part], labels[part]) for part in split_stratified(labels, (3, 1, 1), self.seed)
        )
        return Data.of_tensors(
            train=train, validation=validation, test=test, classes=self.classes, name=self.name
        )


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Offer the made-up data set."""
    return [Fake]
