"""What the networks of timm and torchvision have in common: a name, and where weights come from."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from pydantic import Field
from torch import nn

from gemkit.errors import ModelError
from gemkit.models.blocks import Shape
from gemkit.models.foreign import ForeignNet, first_line, size_text
from gemkit.models.weights import load_weights_, read_weights


class LibraryNet(ForeignNet):
    """A network that a library builds by name."""

    library: ClassVar[str]

    network: str
    # Libraries switch residual branches off for training; pruning at initialization needs them on.
    prepare: bool = Field(default=True, description=ForeignNet.model_fields["prepare"].description)
    pretrained: bool = Field(
        default=False, description="begin with the library's own weights, fetched if need be"
    )
    weights: str | None = Field(
        default=None,
        min_length=1,
        description="begin with the weights in this file: safetensors, or a .pth of tensors alone",
    )

    @property
    def loads_weights(self) -> bool:
        """Whether the library or a file has weights for it."""
        return self.pretrained or self.weights is not None

    @property
    def title(self) -> str:
        """The name, and whose it is."""
        return f"network '{self.network}' of {self.library}"

    @abstractmethod
    def make(self, shape: Shape, classes: int) -> nn.Module:
        """Let the library build the network, with freshly drawn weights."""

    @abstractmethod
    def fetch(self, model: nn.Module, shape: Shape, classes: int) -> nn.Module:
        """Let the library fetch its own weights for the network, which is new."""

    def create(self, shape: Shape, classes: int, *, with_weights: bool) -> nn.Module:
        """Build the network, and fill it as asked."""
        if self.pretrained and self.weights is not None:
            raise ModelError(
                "model.pretrained and model.weights both say where weights come from; give one"
            )
        try:
            model = self.make(shape, classes)
        except Exception as error:  # a library may raise anything
            raise ModelError(
                f"{self.title} cannot be built for images of {size_text(shape)} and {classes} "
                f"classes: {first_line(error)}"
            ) from error
        if with_weights and self.weights is not None:
            state = read_weights(Path(self.weights))
            load_weights_(model, state, self.weights, self.title, classes)
        if with_weights and self.pretrained:
            model = self._fetched(model, shape, classes)
        return model

    def _fetched(self, model: nn.Module, shape: Shape, classes: int) -> nn.Module:
        try:
            return self.fetch(model, shape, classes)
        except ModelError:
            raise
        except Exception as error:  # no network, no cache, no such weights
            raise ModelError(
                f"there are no pretrained weights for {self.title} here: {first_line(error)}; "
                "fetch them where there is internet, give a file with -o model.weights=FILE, or "
                "do without"
            ) from error
