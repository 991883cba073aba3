"""Base class of the networks of timm and torchvision: a name, and the source of weights."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from pydantic import Field
from torch import nn

from gemkit.core.errors import ModelError, describe_error
from gemkit.models.blocks import Shape
from gemkit.models.external import ExternalNet, format_shape
from gemkit.models.weights import load_weights_, read_weights


class LibraryNet(ExternalNet):
    """A network that a library builds by name."""

    library: ClassVar[str]

    network: str
    # Libraries initialize residual branches to zero; pruning at initialization needs them active.
    prepare: bool = Field(default=True, description=ExternalNet.model_fields["prepare"].description)
    pretrained: bool = Field(
        default=False, description="start from the library's pretrained weights"
    )
    weights: str | None = Field(
        default=None,
        min_length=1,
        description="start from the weights in this file: safetensors, or a .pth of tensors only",
    )

    @property
    def loads_weights(self) -> bool:
        """Whether the network starts from pretrained weights."""
        return self.pretrained or self.weights is not None

    @property
    def title(self) -> str:
        """The network's name in messages."""
        return f"network '{self.network}' of {self.library}"

    @abstractmethod
    def make(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network with new weights."""

    @abstractmethod
    def fetch(self, model: nn.Module, shape: Shape, classes: int) -> nn.Module:
        """Return the network with the library's pretrained weights."""

    def create(self, shape: Shape, classes: int, *, with_weights: bool) -> nn.Module:
        """Build the network and load the configured weights."""
        if self.pretrained and self.weights is not None:
            raise ModelError("model.pretrained and model.weights exclude each other; give one")
        try:
            model = self.make(shape, classes)
        except Exception as error:  # a library may raise anything
            raise ModelError(
                f"{self.title} cannot be built for images of {format_shape(shape)} and {classes} "
                f"classes: {describe_error(error)}"
            ) from error
        if with_weights and self.weights is not None:
            state = read_weights(Path(self.weights))
            load_weights_(model, state, self.weights, self.title, classes)
        if with_weights and self.pretrained:
            model = self._with_pretrained(model, shape, classes)
        return model

    def _with_pretrained(self, model: nn.Module, shape: Shape, classes: int) -> nn.Module:
        try:
            return self.fetch(model, shape, classes)
        except ModelError:
            raise
        except Exception as error:  # no network, no cache, no such weights
            raise ModelError(
                f"cannot get pretrained weights for {self.title}: {describe_error(error)}; "
                "download them with internet access, give a file with -o model.weights=FILE, or "
                "leave out model.pretrained"
            ) from error
