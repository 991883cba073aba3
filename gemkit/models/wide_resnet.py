"""Wide ResNets (Zagoruyko and Komodakis 2016): norm and activation come before each convolution."""

from itertools import pairwise
from typing import ClassVar

from pydantic import Field
from torch import nn

from gemkit.hookspecs import hookimpl
from gemkit.models.blocks import PlainNet, Residual, Shape, chain
from gemkit.parts import ModelPart


class WideResNet28x2(PlainNet):
    """WRN-28-2: three stages of four wide blocks; 1,463,984 weights for ten classes."""

    name: ClassVar[str] = "wide_resnet28_2"

    width: int = Field(
        default=16, ge=1, le=1024, description="channels of the stem; others scale with it"
    )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build it for images of any size."""
        stages = (2 * self.width, 4 * self.width, 8 * self.width)
        widths = [self.width, *(width for width in stages for _ in range(4))]
        return chain(
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
        """Make a block; where the shape changes, the shortcut too starts behind the first norm."""
        before: dict[str, nn.Module] = {"bn1": self.norm(inputs), "relu1": nn.ReLU()}
        if inputs == outputs:
            change = chain(**before, **self._convolutions(inputs, outputs, 1))
            return Residual(change, nn.Identity(), relu=False)
        change = chain(**self._convolutions(inputs, outputs, stride))
        shortcut = self.conv(inputs, outputs, 1, stride)
        return chain(**before, sum=Residual(change, shortcut, relu=False))

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
