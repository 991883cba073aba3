"""Small networks for demos, tests and tutorials."""

from math import prod
from typing import ClassVar

from pydantic import Field
from torch import nn

from gemkit.core.errors import DataError
from gemkit.models.blocks import PlainNet, Shape, ValueNet, require_size, sequential
from gemkit.models.part import ModelPart
from gemkit.plugins.markers import hookimpl

_BIAS = Field(default=False, description="give the layers biases")


class Conv4(PlainNet):
    """Four 3 × 3 convolutions, two poolings and a linear classifier; for images from 4 × 4."""

    name: ClassVar[str] = "conv4"

    width: int = Field(default=16, ge=1, le=1024, description="channels of the first convolution")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for images of (channels, height, width)."""
        require_size(self.name, shape, 4)
        channels, net = shape[0], nn.Sequential()
        for index, factor in enumerate((1, 2, 4, 4), start=1):
            out = factor * self.width
            net.add_module(f"conv{index}", self.conv(channels, out, 3))
            net.add_module(f"bn{index}", self.norm(out))
            net.add_module(f"relu{index}", nn.ReLU())
            if index % 2 == 0:
                net.add_module(f"pool{index}", nn.MaxPool2d(2))
            channels = out
        net.add_module("average", nn.AdaptiveAvgPool2d(1))
        net.add_module("flatten", nn.Flatten())
        net.add_module("classifier", nn.Linear(channels, classes, bias=self.bias))
        return net


class LeNet300(ValueNet):
    """LeNet-300-100: linear layers with 300 and 100 units. LeCun et al. (1998)."""

    name: ClassVar[str] = "lenet300"

    bias: bool = _BIAS

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for inputs of any shape."""
        return sequential(
            flatten=nn.Flatten(),
            fc1=nn.Linear(prod(shape), 300, bias=self.bias),
            relu1=nn.ReLU(),
            fc2=nn.Linear(300, 100, bias=self.bias),
            relu2=nn.ReLU(),
            classifier=nn.Linear(100, classes, bias=self.bias),
        )


class LeNet5(ValueNet):
    """LeNet-5 as pruning papers use it: two 5 × 5 convolutions, two linear layers, no norm."""

    name: ClassVar[str] = "lenet5"

    bias: bool = _BIAS

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for images from 16 × 16; the original takes 1 × 28 × 28."""
        require_size(self.name, shape, 16)
        height, width = (((size - 4) // 2 - 4) // 2 for size in shape[1:])
        return sequential(
            conv1=nn.Conv2d(shape[0], 20, 5, bias=self.bias),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(20, 50, 5, bias=self.bias),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(50 * height * width, 500, bias=self.bias),
            relu3=nn.ReLU(),
            classifier=nn.Linear(500, classes, bias=self.bias),
        )


class MLP(PlainNet):
    """A multilayer perceptron: linear layers with batch norm, for tables and any other values."""

    name: ClassVar[str] = "mlp"

    width: int = Field(default=128, ge=1, le=65_536, description="units of every hidden layer")
    depth: int = Field(
        default=3, ge=0, le=1000, description="number of hidden layers; 0 is a linear model"
    )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for inputs of any shape."""
        inputs, net = prod(shape), sequential(flatten=nn.Flatten())
        for index in range(1, self.depth + 1):
            net.add_module(f"fc{index}", nn.Linear(inputs, self.width, bias=self.bias))
            net.add_module(f"bn{index}", self.norm1d(self.width))
            net.add_module(f"relu{index}", nn.ReLU())
            inputs = self.width
        net.add_module("classifier", nn.Linear(inputs, classes, bias=self.bias))
        return net


class Conv1d(PlainNet):
    """Four convolutions of three steps, two poolings and a linear classifier, for signals."""

    name: ClassVar[str] = "conv1d"

    width: int = Field(default=16, ge=1, le=1024, description="channels of the first convolution")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for signals of (channels, steps), from 4 steps."""
        if len(shape) != 2 or shape[1] < 4:
            raise DataError(
                f"model '{self.name}' takes signals of [channels, steps], from 4 steps, not inputs "
                f"of shape {list(shape)}; model 'mlp' takes any shape"
            )
        channels, net = shape[0], nn.Sequential()
        for index, factor in enumerate((1, 2, 4, 4), start=1):
            out = factor * self.width
            conv = nn.Conv1d(channels, out, 3, padding=1, bias=self.bias)
            net.add_module(f"conv{index}", conv)
            net.add_module(f"bn{index}", self.norm1d(out))
            net.add_module(f"relu{index}", nn.ReLU())
            if index % 2 == 0:
                net.add_module(f"pool{index}", nn.MaxPool1d(2))
            channels = out
        net.add_module("average", nn.AdaptiveAvgPool1d(1))
        net.add_module("flatten", nn.Flatten())
        net.add_module("classifier", nn.Linear(channels, classes, bias=self.bias))
        return net


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Register the networks."""
    return [Conv4, LeNet300, LeNet5, MLP, Conv1d]
