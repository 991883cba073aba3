"""Wide ResNets (Zagoruyko and Komodakis 2016), with pre-activation blocks."""

from itertools import pairwise
from typing import ClassVar

from pydantic import Field
from torch import nn

from gemkit.models.blocks import PlainNet, Residual, Shape, require_size, sequential
from gemkit.models.part import ModelPart
from gemkit.plugins.markers import hookimpl


class WideResNet28x2(PlainNet):
    """WRN-28-2: three stages of four wide blocks; 1,463,984 weights for ten classes."""

    name: ClassVar[str] = "wide_resnet28_2"

    width: int = Field(
        default=16, ge=1, le=1024, description="channels of the stem; the rest scale with it"
    )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for images of any size."""
        require_size(self.name, shape, 1)
        stages = (2 * self.width, 4 * self.width, 8 * self.width)
        widths = [self.width, *(width for width in stages for _ in range(4))]
        return sequential(
            conv1=self.conv(shape[0], self.width, 3),
            blocks=nn.Sequential(
                *(
                    self._block(inputs, outputs, 1 if outputs == stages[0] else 2)
                    for inputs, outputs in pairwise(widths)
                )
            ),
            bn1=self.norm(widths[-1]),
            relu1=nn.ReLU(),
            **self.head(widths[-1], classes),
        )

    def _block(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        """Make a block; if the shape changes, the shortcut also follows the first norm and ReLU."""
        before: dict[str, nn.Module] = {"bn1": self.norm(inputs), "relu1": nn.ReLU()}
        if inputs == outputs:
            change = sequential(**before, **self._convolutions(inputs, outputs, 1))
            return Residual(change, nn.Identity(), relu=False)
        change = sequential(**self._convolutions(inputs, outputs, stride))
        shortcut = self.conv(inputs, outputs, 1, stride)
        return sequential(**before, sum=Residual(change, shortcut, relu=False))

    def _convolutions(self, inputs: int, outputs: int, stride: int) -> dict[str, nn.Module]:
        return {
            "conv1": self.conv(inputs, outputs, 3, stride),
            "bn2": self.norm(outputs),
            "relu2": nn.ReLU(),
            "conv2": self.conv(outputs, outputs, 3),
        }


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Register the network."""
    return [WideResNet28x2]
