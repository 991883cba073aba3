"""A synthetic data set of any size, for tests and quick trials."""

from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field

from gemkit.core.errors import DataError
from gemkit.core.limits import MAX_IMAGE_VALUES
from gemkit.core.tensors import generator
from gemkit.data.part import DatasetPart
from gemkit.data.source import Data
from gemkit.data.splits import split_stratified
from gemkit.plugins.markers import hookimpl


class Fake(DatasetPart):
    """Synthetic images: one random image per class, plus noise for each sample.

    Easy to learn, the same on every machine, split 60/20/20. For tests, not for results.
    """

    name: ClassVar[str] = "fake"

    samples: int = Field(default=256, ge=10, le=1_000_000, description="images in all splits")
    size: int = Field(default=8, ge=1, le=1024, description="height and width in pixels")
    channels: int = Field(default=3, ge=1, le=64, description="colour channels")
    classes: int = Field(default=4, ge=2, le=10_000, description="number of classes")
    noise: float = Field(
        default=0.25, ge=0, le=100, description="standard deviation of the noise; pixels are 0 to 1"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of images, noise and split")

    def check_size(self) -> None:
        """Refuse a data set that is too large: an untrusted ticket may name any size."""
        values = (self.samples + self.classes) * self.channels * self.size**2
        if values > MAX_IMAGE_VALUES:
            raise DataError(
                f"data set '{self.name}' would have {values:,} values, more than the limit of "
                f"{MAX_IMAGE_VALUES:,}; lower dataset.samples, size, channels or classes"
            )

    def load(self, folder: Path | None) -> Data:
        """Draw the images; `folder` is ignored."""
        self.check_size()
        rng = generator(self.seed, "fake data")
        shape = (self.channels, self.size, self.size)
        prototypes = torch.rand((self.classes, *shape), generator=rng)
        labels = torch.arange(self.samples) % self.classes
        noise = torch.randn((self.samples, *shape), generator=rng) * self.noise
        images = (prototypes[labels] + noise).clamp(0, 1).mul(255).round().byte()
        train, validation, test = (
            (images[part], labels[part]) for part in split_stratified(labels, (3, 1, 1), self.seed)
        )
        return Data.of_tensors(
            train=train, validation=validation, test=test, classes=self.classes, name=self.name
        )


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Register the synthetic data set."""
    return [Fake]
