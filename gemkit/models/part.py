"""Networks as parts."""

from abc import abstractmethod

from torch import nn

from gemkit.data.source import Data
from gemkit.parts.part import Part


class ModelPart(Part):
    """A network for any input shape and number of classes, or of other outputs."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network with new weights, for inputs of a shape: images are (C, H, W)."""

    def check_data(self, data: Data) -> None:
        """Refuse data that the network cannot take; called before it is built."""

    def skeleton(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for a ticket's weights; override if `build` downloads weights."""
        return self.build(shape, classes)
