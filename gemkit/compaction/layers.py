"""What layers with parameters do to channels: convolutions, linear layers and batch norm."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.fx import Node

from gemkit.compaction.signals import Kept, Signal, Signals, known_still, moving
from gemkit.compaction.steps import Step
from gemkit.tensors import Tensors


class Product(Step):
    """A convolution or a linear layer, its weights already under the mask.

    `connected` tells which input may reach which output: (outputs, inputs of one group). Zeros
    around an image tell its edge from its middle, so behind a padded convolution a still channel
    other than zero is still no longer.
    """

    def __init__(
        self, node: Node, read: Node, layer: nn.Conv2d | nn.Linear, mask: Tensor | None
    ) -> None:
        super().__init__(node, [read])
        self.layer = layer
        self.trains = mask is not None
        self.weight = layer.weight.detach()
        used = self.weight != 0 if mask is None else mask
        self.connected = used.flatten(1) if used.ndim == 2 else used.flatten(2).any(2)
        self.groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
        self.inputs = self.connected.shape[1] * self.groups
        self.padded = isinstance(layer, nn.Conv2d) and _padded(layer)

    def signal(self, known: Signals) -> Signal | None:
        """An output is still where all that reaches it is; one with a bias learns to be another."""
        heard = self._heard(known)
        still = (~self.connected | self._seen(self._passed(heard))).all(1)
        value = (self._sums() * self._seen(heard.value)).sum(1)
        if self.layer.bias is not None:
            value = value + self.layer.bias.detach()
            still = still & (not self.trains)
        last = len(self.node.meta["tensor_meta"].shape) - 1
        return known_still(1 if isinstance(self.layer, nn.Conv2d) else last, still, value)

    def spread(self, known: Signals, kept: Kept) -> None:
        """Keep what reaches an output that stays and is not still."""
        heard, (read,) = self._heard(known), self.reads
        wanted = self.connected & kept.masks[self.node][:, None]
        spared = self._passed(heard) if self.groups > 1 else heard.still
        kept.widen(read, self._inputs_of(wanted & ~self._seen(spared)))
        if self.groups > 1:
            self._level(kept)
        elif self.padded:
            lost = self._inputs_of(wanted) & heard.shifted & ~kept.of(read, self.inputs)
            if lost.any():
                kept.widen(read, _only(_speaker(heard), self.inputs))

    def folded(self, known: Signals, kept: Kept) -> Tensors:
        """Return the weight or bias that carries on what still channels that go have brought.

        Without padding that is a number for every output, and goes into the bias. With padding it
        is the picture of an image of one colour, which one still channel can stand for; a kernel
        whose sum is zero draws nothing but its edge.
        """
        heard, (read,) = self._heard(known), self.reads
        gone = torch.where(kept.of(read, self.inputs), 0.0, heard.value)
        own = self.weight.flatten(2) if self.padded else self._sums()[:, :, None]
        brought = own * (self._seen(gone) * kept.masks[self.node][:, None])[:, :, None]
        if not brought.any():
            return {}
        if self.padded:
            speaker = _speaker(heard)
            parts = gone / heard.value[speaker]
            weight = self.weight.clone()
            weight[:, speaker] += (self.weight * parts[:, None, None]).sum(1)
            return {"weight": weight}
        bias = self.layer.bias
        return {"bias": brought.sum((1, 2)) + (0.0 if bias is None else bias.detach())}

    def places(self, kept: Kept) -> Tensors:
        """Number the weights group by group, then take what stays."""
        inputs, outputs = self._grouped(kept)
        numbers = torch.arange(self.weight.numel()).reshape(self.groups, -1, *self.weight.shape[1:])
        pieces = [
            numbers[place][outputs[place]][:, inputs[place]]
            for place in outputs.any(1).nonzero().flatten().tolist()
        ]
        return {"weight": torch.cat(pieces), "bias": outputs.flatten().nonzero().flatten()}

    def settings(self, kept: Kept) -> dict[str, int]:
        """Count inputs, outputs and groups anew."""
        inputs, outputs = self._grouped(kept)
        sizes = int(inputs.sum()), int(outputs.sum())
        if isinstance(self.layer, nn.Linear):
            return dict(zip(("in_features", "out_features"), sizes, strict=True))
        groups = int(outputs.any(1).sum())
        return {"in_channels": sizes[0], "out_channels": sizes[1], "groups": groups}

    def _heard(self, known: Signals) -> Signal:
        return known.get(self.reads[0]) or moving(self.inputs)

    def _passed(self, heard: Signal) -> Tensor:
        """Tell which inputs keep an output still."""
        return heard.still & ~heard.shifted if self.padded else heard.still

    def _seen(self, inputs: Tensor) -> Tensor:
        """Lay a vector over the inputs out as `connected` is."""
        own = inputs.reshape(self.groups, 1, -1)
        return own.expand(-1, len(self.weight) // self.groups, -1).flatten(0, 1)

    def _inputs_of(self, pairs: Tensor) -> Tensor:
        """Tell which inputs occur in pairs of output and input."""
        return pairs.reshape(self.groups, -1, pairs.shape[1]).any(1).flatten()

    def _sums(self) -> Tensor:
        """Return what each input adds to each output if it is one everywhere."""
        return self.weight if self.weight.ndim == 2 else self.weight.flatten(2).sum(2)

    def _grouped(self, kept: Kept) -> tuple[Tensor, Tensor]:
        inputs, outputs = kept.of(self.reads[0], self.inputs), kept.masks[self.node]
        return inputs.reshape(self.groups, -1), outputs.reshape(self.groups, -1)

    def _level(self, kept: Kept) -> None:
        """Keep as much of every group as of the fullest, for groups are equally large."""
        inputs, outputs = self._grouped(kept)
        stays = (inputs.any(1) | outputs.any(1))[:, None]
        for node, rows in ((self.reads[0], inputs), (self.node, outputs)):
            lacking = rows.sum(1).max().clamp(min=1) - rows.sum(1)
            filled = ~rows & ((~rows).cumsum(1) <= lacking[:, None])
            kept.widen(node, ((rows | filled) & stays).flatten())


class Norm(Step):
    """Batch norm, and the activation that some libraries build into it.

    In training, a still channel leaves a norm as its shift, which learns; where there is none, as
    zero. A shift of zero stays zero if nothing follows but a ReLU, which is flat there.
    """

    def __init__(
        self,
        node: Node,
        read: Node,
        layer: nn.BatchNorm1d | nn.BatchNorm2d,
        act: Callable[[Tensor], Tensor],
        *,
        trains: bool,
        clipped: bool,
    ) -> None:
        super().__init__(node, [read])
        self.layer, self.act = layer, act
        self.trains, self.clipped = trains, clipped

    def signal(self, known: Signals) -> Signal | None:
        """Apply the statistics, or foresee what training makes of a channel without variance."""
        axis, still, value = known[self.reads[0]]
        nothing = torch.zeros_like(value)
        scale, shift, mean, variance = (
            None if own is None else own.detach()
            for own in (
                self.layer.weight,
                self.layer.bias,
                self.layer.running_mean,
                self.layer.running_var,
            )
        )
        if self.trains:
            if shift is not None:
                still = still & (shift == 0) & self.clipped
            return known_still(axis, still, self.act(nothing))
        if scale is not None:
            still = still | (scale == 0)
        if mean is not None and variance is not None:
            value = (value - mean) / (variance + self.layer.eps).sqrt()
        else:
            value = nothing  # the statistics of the batch
        value = value if scale is None else value * scale
        return known_still(axis, still, self.act(value if shift is None else value + shift))

    def spread(self, known: Signals, kept: Kept) -> None:
        """Channels stay or go together with those they are made of."""
        (read,) = self.reads
        kept.widen(read, kept.masks[self.node])
        kept.widen(self.node, kept.masks[read])

    def places(self, kept: Kept) -> Tensors:
        """Take one number per channel from each of its vectors."""
        own = kept.masks[self.node].nonzero().flatten()
        return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), own)

    def settings(self, kept: Kept) -> dict[str, int]:
        """Count the channels anew."""
        return {"num_features": int(kept.masks[self.node].sum())}


def _padded(layer: nn.Conv2d) -> bool:
    """Tell whether a convolution puts zeros around the image."""
    if isinstance(layer.padding, str):
        return layer.padding == "same" and layer.padding_mode == "zeros"
    return any(layer.padding) and layer.padding_mode == "zeros"


def _speaker(heard: Signal) -> int:
    """Choose the still channel that stands for all others: the largest."""
    return int(torch.where(heard.still, heard.value.abs(), 0.0).argmax())


def _only(place: int, size: int) -> Tensor:
    return torch.arange(size) == place
