"""Models that are awkward to prune, each built for the shape of an input and a number of classes.

`docs.tools.awkward` runs them and writes the table in docs/models.md. They also run from the
command line: `gemkit run --model docs.tools.awkward_models:lstm`.
"""

import threading
import warnings
from collections import OrderedDict
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel

Shape = tuple[int, ...]


def plain(shape: Shape, classes: int) -> nn.Sequential:
    """Two linear layers, which is not awkward."""
    layers = {
        "flat": nn.Flatten(),
        "body": nn.Linear(prod(shape), 16),
        "relu": nn.ReLU(),
        "head": nn.Linear(16, classes),
    }
    return nn.Sequential(OrderedDict(layers))


class Net(nn.Module):
    """A body and a head; other models here change something about it."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(prod(shape), 16)
        self.head = nn.Linear(16, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.hidden(inputs))

    def hidden(self, inputs: Tensor) -> Tensor:
        """Return the features of the body."""
        return torch.relu(self.body(inputs.flatten(1)))


# --- wrappers ------------------------------------------------------------------------------------


def data_parallel(shape: Shape, classes: int) -> nn.Module:
    """`nn.DataParallel(model)`."""
    return nn.DataParallel(plain(shape, classes))


def compiled(shape: Shape, classes: int) -> nn.Module:
    """`torch.compile(model)`."""
    return torch.compile(plain(shape, classes))


def compiled_in_place(shape: Shape, classes: int) -> nn.Module:
    """`model.compile()`."""
    model = plain(shape, classes)
    model.compile(backend="eager")
    return model


def averaged(shape: Shape, classes: int) -> nn.Module:
    """`AveragedModel(model)`, an average of weights."""
    return AveragedModel(plain(shape, classes))


def scripted(shape: Shape, classes: int) -> nn.Module:
    """`torch.jit.script(model)`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(plain(shape, classes))


# --- parameters ----------------------------------------------------------------------------------


def weight_norm(shape: Shape, classes: int) -> nn.Module:
    """Old `torch.nn.utils.weight_norm`."""
    model = plain(shape, classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(model.body)
    return model


def parametrized(shape: Shape, classes: int) -> nn.Module:
    """`torch.nn.utils.parametrizations.weight_norm`."""
    model = plain(shape, classes)
    parametrizations.weight_norm(model.body)
    return model


def spectral_norm(shape: Shape, classes: int) -> nn.Module:
    """Old `torch.nn.utils.spectral_norm`."""
    model = plain(shape, classes)
    nn.utils.spectral_norm(model.body)
    return model


def pruned(shape: Shape, classes: int) -> nn.Module:
    """`torch.nn.utils.prune.l1_unstructured`."""
    model = plain(shape, classes)
    prune.l1_unstructured(model.body, "weight", amount=0.5)
    return model


class Phase(Net):
    """A complex scale of the features."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes)
        self.phase = nn.Parameter(torch.ones(16, dtype=torch.complex64))

    def hidden(self, inputs: Tensor) -> Tensor:
        """Return the size of complex features."""
        return (super().hidden(inputs) * self.phase).abs()


def complex_parameters(shape: Shape, classes: int) -> nn.Module:
    """Complex parameters."""
    return Phase(shape, classes)


def meta(shape: Shape, classes: int) -> nn.Module:
    """Parameters on the meta device."""
    with torch.device("meta"):
        return plain(shape, classes)


def lazy(shape: Shape, classes: int) -> nn.Module:
    """`nn.LazyLinear`, before its first batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, classes))


def expanded_buffer(shape: Shape, classes: int) -> nn.Module:
    """A buffer made by `expand`."""

    class Scaled(Net):
        def __init__(self) -> None:
            super().__init__(shape, classes)
            self.register_buffer("scale", torch.ones(1).expand(16))

        def hidden(self, inputs: Tensor) -> Tensor:
            return super().hidden(inputs) * self.scale

    return Scaled()


def expanded_parameter(shape: Shape, classes: int) -> nn.Module:
    """A parameter made by `expand`."""
    model = plain(shape, classes)
    model.head.bias = nn.Parameter(torch.zeros(1).expand(classes))
    return model


def tied(shape: Shape, classes: int) -> nn.Module:
    """A weight that two layers share."""

    class Twice(Net):
        def __init__(self) -> None:
            super().__init__(shape, classes)
            self.middle, self.again = nn.Linear(16, 16), nn.Linear(16, 16)
            self.again.weight = self.middle.weight

        def hidden(self, inputs: Tensor) -> Tensor:
            return torch.relu(self.again(torch.relu(self.middle(super().hidden(inputs)))))

    return Twice()


def frozen(shape: Shape, classes: int) -> nn.Module:
    """A frozen layer."""
    model = plain(shape, classes)
    model.body.requires_grad_(False)
    return model


def bfloat16(shape: Shape, classes: int) -> nn.Module:
    """Parameters in bfloat16."""
    return plain(shape, classes).bfloat16()


def double(shape: Shape, classes: int) -> nn.Module:
    """Parameters in float64."""
    return plain(shape, classes).double()


# --- inputs and outputs --------------------------------------------------------------------------


class TupleOutput(Net):
    """Returns logits and features."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return both."""
        hidden = self.hidden(inputs)
        return self.head(hidden), hidden


def tuple_output(shape: Shape, classes: int) -> nn.Module:
    """A tuple of outputs."""
    return TupleOutput(shape, classes)


class DictOutput(Net):
    """Returns logits in a dictionary."""

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Return logits by name."""
        return {"logits": super().forward(inputs)}


def dict_output(shape: Shape, classes: int) -> nn.Module:
    """A dictionary of outputs."""
    return DictOutput(shape, classes)


class AuxiliaryHead(Net):
    """Returns a second output in training, as Inception does."""

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits, in training twice."""
        logits = super().forward(inputs)
        return (logits, logits) if self.training else logits


def auxiliary_output(shape: Shape, classes: int) -> nn.Module:
    """A second output in training alone."""
    return AuxiliaryHead(shape, classes)


class TwoInputs(Net):
    """Takes a second input."""

    def forward(self, inputs: Tensor, scale: Tensor) -> Tensor:
        """Return scaled logits."""
        return super().forward(inputs) * scale


def two_inputs(shape: Shape, classes: int) -> nn.Module:
    """Two inputs."""
    return TwoInputs(shape, classes)


class OptionalInput(Net):
    """Takes a second input, which may be left out."""

    def forward(self, inputs: Tensor, scale: float = 1.0) -> Tensor:
        """Return scaled logits."""
        return super().forward(inputs) * scale


def optional_input(shape: Shape, classes: int) -> nn.Module:
    """A second input with a default."""
    return OptionalInput(shape, classes)


def wrong_size(shape: Shape, classes: int) -> nn.Module:
    """A network for another input size."""
    return plain((*shape[:-1], shape[-1] + 1), classes)


# --- layers --------------------------------------------------------------------------------------


class Rows(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(shape[0] * shape[2], 8, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of the last row."""
        return self.head(self.lstm(inputs.transpose(1, 2).flatten(2))[0][:, -1])


def lstm(shape: Shape, classes: int) -> nn.Module:
    """`nn.LSTM`."""
    return Rows(shape, classes)


class Levels(nn.Module):
    """An embedding of brightness levels."""

    def __init__(self, classes: int, *, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8, sparse=sparse)
        self.head = nn.Linear(8, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of the mean embedding."""
        levels = (inputs.clamp(-2, 2) * 2 + 4).long()
        return self.head(self.embed(levels).flatten(1, -2).mean(1))


def embedding(shape: Shape, classes: int) -> nn.Module:
    """`nn.Embedding`."""
    return Levels(classes)


def sparse_embedding(shape: Shape, classes: int) -> nn.Module:
    """`nn.Embedding(..., sparse=True)`."""
    return Levels(classes, sparse=True)


class Attends(nn.Module):
    """Attention over the rows of an image."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(shape[0] * shape[2], 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of the mean row."""
        rows = self.body(inputs.transpose(1, 2).flatten(2))
        return self.head(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))


def attention(shape: Shape, classes: int) -> nn.Module:
    """`nn.MultiheadAttention`."""
    return Attends(shape, classes)


def nothing_to_prune(shape: Shape, classes: int) -> nn.Module:
    """No layer with weights."""
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(prod(shape)), nn.AdaptiveAvgPool1d(classes))


class IdleHead(Net):
    """Has a layer that the forward pass does not use."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes)
        self.idle = nn.Linear(16, classes)


def unused_layer(shape: Shape, classes: int) -> nn.Module:
    """A layer that is not used."""
    return IdleHead(shape, classes)


def lock(shape: Shape, classes: int) -> nn.Module:
    """An attribute that cannot be copied."""
    model = plain(shape, classes)
    model.lock = threading.Lock()
    return model


MODELS = (
    *(data_parallel, compiled, compiled_in_place, averaged, scripted),
    *(tied, frozen, bfloat16, double, attention, lstm, embedding, sparse_embedding),
    *(weight_norm, parametrized, spectral_norm, pruned),
    *(complex_parameters, meta, lazy, expanded_buffer, expanded_parameter),
    *(tuple_output, dict_output, auxiliary_output, two_inputs, optional_input, wrong_size),
    *(nothing_to_prune, unused_layer, lock),
)
"""All of them, in the order of the table."""
