"""How convolutions, linear layers and batch norm treat channels."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.fx import Node

from gemkit.compaction.channels import ChannelMap, Channels, KeptChannels, make_channels, varying
from gemkit.compaction.ops import Op
from gemkit.core.tensors import Tensors

Layer = nn.Conv1d | nn.Conv2d | nn.Linear
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


class ConvOrLinear(Op):
    """A convolution or a linear layer with masked weights.

    `connected` marks the inputs that may reach an output: [outputs, inputs of one group]. With zero
    padding, a constant input other than zero is not constant in the result, as the border differs.
    """

    def __init__(self, node: Node, read: Node, layer: Layer, mask: Tensor | None) -> None:
        super().__init__(node, [read])
        self.layer = layer
        self.trains = mask is not None
        self.weight = layer.weight.detach()
        used = self.weight != 0 if mask is None else mask
        self.connected = used.flatten(1) if used.ndim == 2 else used.flatten(2).any(2)
        self.groups = layer.groups if isinstance(layer, CONVOLUTIONS) else 1
        self.in_channels = self.connected.shape[1] * self.groups
        self.padded = isinstance(layer, CONVOLUTIONS) and _padded(layer)

    def channels(self, known: ChannelMap) -> Channels | None:
        """An output is constant if all connected inputs are, and it has no trainable bias."""
        inputs = self._input_channels(known)
        constant = (~self.connected | self._per_output(self._preserved(inputs))).all(1)
        value = (self._kernel_sums() * self._per_output(inputs.value)).sum(1)
        if self.layer.bias is not None:
            value = value + self.layer.bias.detach()
            constant = constant & (not self.trains)
        last = len(self.node.meta["tensor_meta"].shape) - 1
        return make_channels(1 if isinstance(self.layer, CONVOLUTIONS) else last, constant, value)

    def propagate(self, known: ChannelMap, kept: KeptChannels) -> None:
        """Keep the varying inputs of kept outputs."""
        inputs, (read,) = self._input_channels(known), self.inputs
        needed = self.connected & kept.masks[self.node][:, None]
        removable = self._preserved(inputs) if self.groups > 1 else inputs.constant
        kept.add(read, self._any_output(needed & ~self._per_output(removable)))
        if self.groups > 1:
            self._balance_groups(kept)
        elif self.padded:
            removed = self._any_output(needed) & inputs.nonzero & ~kept.of(read, self.in_channels)
            if removed.any():
                kept.add(read, _one_hot(_representative(inputs), self.in_channels))

    def folded(self, known: ChannelMap, kept: KeptChannels) -> Tensors:
        """Return the weight or bias that contains the contribution of removed constant inputs.

        Without padding, the contribution is one number per output and goes into the bias. With
        padding, it is that of a constant image. One constant channel that is kept can represent all
        others. A kernel whose sum is zero contributes only at the border.
        """
        inputs, (read,) = self._input_channels(known), self.inputs
        removed = torch.where(kept.of(read, self.in_channels), 0.0, inputs.value)
        kernel = self.weight.flatten(2) if self.padded else self._kernel_sums()[:, :, None]
        outputs = kept.masks[self.node][:, None]
        contribution = kernel * (self._per_output(removed) * outputs)[:, :, None]
        if not contribution.any():
            return {}
        if self.padded:
            index = _representative(inputs)
            ratios = removed / inputs.value[index]
            weight = self.weight.clone()
            spread = ratios.view(-1, *[1] * (weight.ndim - 2))
            weight[:, index] += (self.weight * spread).sum(1)
            return {"weight": weight}
        bias = self.layer.bias
        return {"bias": contribution.sum((1, 2)) + (0.0 if bias is None else bias.detach())}

    def places(self, kept: KeptChannels) -> Tensors:
        """Return the flat indices of the kept weights, group by group, and of the kept biases."""
        inputs, outputs = self._kept_by_group(kept)
        indices = torch.arange(self.weight.numel()).reshape(self.groups, -1, *self.weight.shape[1:])
        pieces = [
            indices[group][outputs[group]][:, inputs[group]]
            for group in outputs.any(1).nonzero().flatten().tolist()
        ]
        return {"weight": torch.cat(pieces), "bias": outputs.flatten().nonzero().flatten()}

    def settings(self, kept: KeptChannels) -> dict[str, int]:
        """Return the number of kept inputs, outputs and groups."""
        inputs, outputs = self._kept_by_group(kept)
        sizes = int(inputs.sum()), int(outputs.sum())
        if isinstance(self.layer, nn.Linear):
            return dict(zip(("in_features", "out_features"), sizes, strict=True))
        groups = int(outputs.any(1).sum())
        return {"in_channels": sizes[0], "out_channels": sizes[1], "groups": groups}

    def _input_channels(self, known: ChannelMap) -> Channels:
        return known.get(self.inputs[0]) or varying(self.in_channels)

    def _preserved(self, inputs: Channels) -> Tensor:
        """Return the inputs whose contribution to an output is constant."""
        return inputs.constant & ~inputs.nonzero if self.padded else inputs.constant

    def _per_output(self, inputs: Tensor) -> Tensor:
        """Expand a vector over the inputs to the shape of `connected`."""
        grouped = inputs.reshape(self.groups, 1, -1)
        return grouped.expand(-1, len(self.weight) // self.groups, -1).flatten(0, 1)

    def _any_output(self, pairs: Tensor) -> Tensor:
        """Reduce pairs of output and input to the inputs that occur."""
        return pairs.reshape(self.groups, -1, pairs.shape[1]).any(1).flatten()

    def _kernel_sums(self) -> Tensor:
        """Return the contribution of each input to each output if the input is 1 everywhere."""
        return self.weight if self.weight.ndim == 2 else self.weight.flatten(2).sum(2)

    def _kept_by_group(self, kept: KeptChannels) -> tuple[Tensor, Tensor]:
        inputs, outputs = kept.of(self.inputs[0], self.in_channels), kept.masks[self.node]
        return inputs.reshape(self.groups, -1), outputs.reshape(self.groups, -1)

    def _balance_groups(self, kept: KeptChannels) -> None:
        """Keep as many channels of every remaining group as of the largest one."""
        inputs, outputs = self._kept_by_group(kept)
        remains = (inputs.any(1) | outputs.any(1))[:, None]
        for node, rows in ((self.inputs[0], inputs), (self.node, outputs)):
            missing = rows.sum(1).max().clamp(min=1) - rows.sum(1)
            filled = ~rows & ((~rows).cumsum(1) <= missing[:, None])
            kept.add(node, ((rows | filled) & remains).flatten())


class BatchNorm(Op):
    """Batch norm, with the activation that some libraries build into it.

    In training, a constant channel becomes the shift, which is trained, or zero without a shift. A
    shift of zero remains zero if only ReLUs follow (`before_relu`), whose gradient at zero is zero.
    """

    def __init__(
        self,
        node: Node,
        read: Node,
        layer: nn.BatchNorm1d | nn.BatchNorm2d,
        act: Callable[[Tensor], Tensor],
        *,
        trains: bool,
        before_relu: bool,
    ) -> None:
        super().__init__(node, [read])
        self.layer, self.act = layer, act
        self.trains, self.before_relu = trains, before_relu

    def channels(self, known: ChannelMap) -> Channels | None:
        """Apply the running statistics or, in training, those of a constant channel."""
        axis, constant, value = known[self.inputs[0]]
        zeros = torch.zeros_like(value)
        scale, shift, mean, variance = (
            None if tensor is None else tensor.detach()
            for tensor in (
                self.layer.weight,
                self.layer.bias,
                self.layer.running_mean,
                self.layer.running_var,
            )
        )
        if self.trains:
            if shift is not None:
                constant = constant & (shift == 0) & self.before_relu
            return make_channels(axis, constant, self.act(zeros))
        if scale is not None:
            constant = constant | (scale == 0)
        if mean is not None and variance is not None:
            value = (value - mean) / (variance + self.layer.eps).sqrt()
        else:
            value = zeros  # batch statistics
        value = value if scale is None else value * scale
        return make_channels(axis, constant, self.act(value if shift is None else value + shift))

    def propagate(self, known: ChannelMap, kept: KeptChannels) -> None:
        """Keep the same channels of the input and the result."""
        (read,) = self.inputs
        kept.add(read, kept.masks[self.node])
        kept.add(self.node, kept.masks[read])

    def places(self, kept: KeptChannels) -> Tensors:
        """Return the indices of the kept channels for each of its vectors."""
        indices = kept.masks[self.node].nonzero().flatten()
        return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), indices)

    def settings(self, kept: KeptChannels) -> dict[str, int]:
        """Return the number of kept channels."""
        return {"num_features": int(kept.masks[self.node].sum())}


def _padded(layer: nn.Conv1d | nn.Conv2d) -> bool:
    """Whether a convolution pads its input with zeros."""
    if isinstance(layer.padding, str):
        return layer.padding == "same" and layer.padding_mode == "zeros"
    return any(layer.padding) and layer.padding_mode == "zeros"


def _representative(inputs: Channels) -> int:
    """Choose the constant channel that represents the others: the one of largest magnitude."""
    return int(torch.where(inputs.constant, inputs.value.abs(), 0.0).argmax())


def _one_hot(index: int, size: int) -> Tensor:
    return torch.arange(size) == index
