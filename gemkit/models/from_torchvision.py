"""All image classifiers of torchvision, which is imported lazily."""

from typing import Any, ClassVar

import torch
from pydantic import Field, field_validator
from torch import nn

from gemkit.core.errors import did_you_mean
from gemkit.models.blocks import Shape
from gemkit.models.library import LibraryNet
from gemkit.models.part import ModelPart
from gemkit.models.weights import load_weights_
from gemkit.plugins.markers import hookimpl


class Torchvision(LibraryNet):
    """Any image classifier of torchvision by its name there, such as torchvision:resnet18."""

    name: ClassVar[str] = "torchvision"
    argument: ClassVar[str | None] = "network"
    library: ClassVar[str] = "torchvision"

    network: str = Field(
        pattern=r"^[a-z0-9_]+$",
        examples=["resnet18", "vit_b_16", "mobilenet_v3_small"],
        description="its name in torchvision",
    )

    @field_validator("network")
    @classmethod
    def _is_known(cls, network: str) -> str:
        from torchvision import models

        known = models.list_models(module=models)
        if network not in known:
            raise ValueError(f"torchvision has no such classifier{did_you_mean(network, known)}")
        return network

    def make(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network, with a new first convolution if images do not have 3 channels."""
        from torchvision.models import get_model

        model: nn.Module = get_model(
            self.network, weights=None, num_classes=classes, **self._settings(shape)
        )
        if shape[0] != 3:
            first = model.get_submodule(_first_convolution(model))
            assert isinstance(first, nn.Conv2d)
            first.in_channels = shape[0]
            first.weight = nn.Parameter(
                torch.empty(first.out_channels, shape[0], *first.kernel_size)
            )
            first.reset_parameters()
        return model

    def fetch(self, model: nn.Module, shape: Shape, classes: int) -> nn.Module:
        """Load torchvision's weights into the network."""
        from torchvision.models import get_model_weights

        best = get_model_weights(self.network).DEFAULT
        state = best.get_state_dict(progress=False, check_hash=True, weights_only=True)
        # Auxiliary heads, which some networks were trained with, are not built here.
        state = {key: value for key, value in state.items() if not key.lower().startswith("aux")}
        if shape[0] != 3:  # spread the sum over three channels evenly
            weight = f"{_first_convolution(model)}.weight"
            shared = state[weight].sum(dim=1, keepdim=True) / shape[0]
            state[weight] = shared.expand(-1, shape[0], -1, -1)
        load_weights_(model, state, str(best), self.title, classes)
        return model

    def _settings(self, shape: Shape) -> dict[str, Any]:
        """Return the extra arguments that some families need."""
        _, height, width = shape
        if self.network.startswith("vit_"):
            return {"image_size": height}
        if self.network.startswith("maxvit"):
            return {"input_size": (height, width)}
        if self.network in {"googlenet", "inception_v3"}:
            return {"aux_logits": False, "init_weights": True}
        return {}


def _first_convolution(model: nn.Module) -> str:
    """Return the name of the first convolution."""
    layers = model.named_modules()
    name: str = next(name for name, layer in layers if isinstance(layer, nn.Conv2d))
    return name


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Register the classifiers of torchvision."""
    return [Torchvision]
