"""Networks as parts."""

from abc import abstractmethod

from torch import nn

from gemkit.parts.part import Part


class ModelPart(Part):
    """A network for any input shape and number of classes, or of other outputs."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network with new weights, for images of (channels, height, width)."""

    def skeleton(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for a ticket's weights; override if `build` downloads weights."""
        return self.build(shape, classes)
