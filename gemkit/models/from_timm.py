"""All networks of timm, which is imported lazily because that takes seconds."""

from typing import Any, ClassVar

from pydantic import Field, field_validator
from torch import nn

from gemkit.core.errors import did_you_mean
from gemkit.models.blocks import Shape
from gemkit.models.library import LibraryNet
from gemkit.models.part import ModelPart
from gemkit.plugins.markers import hookimpl


class Timm(LibraryNet):
    """Any network of timm by its name there, such as timm:resnet18 or timm:vit_tiny_patch16_224."""

    name: ClassVar[str] = "timm"
    argument: ClassVar[str | None] = "network"
    library: ClassVar[str] = "timm"

    # Plain names only: timm also takes repositories and folders, so that a ticket could otherwise
    # cause a download from anywhere.
    network: str = Field(
        pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)?$",
        examples=["resnet18", "resnet18.a1_in1k", "vit_tiny_patch16_224"],
        description="its name in timm",
    )

    @field_validator("network")
    @classmethod
    def _is_known(cls, network: str) -> str:
        import timm

        if not timm.is_model(network):
            hint = did_you_mean(network.partition(".")[0], timm.list_models())
            raise ValueError(f"timm has no such network{hint or '; timm.list_models() lists them'}")
        return network

    def make(self, shape: Shape, classes: int) -> nn.Module:
        """Build the network for these images and classes."""
        return self._create_model(shape, classes, pretrained=False)

    def fetch(self, model: nn.Module, shape: Shape, classes: int) -> nn.Module:
        """Build the network again: timm adapts its weights to channels, classes and sizes."""
        return self._create_model(shape, classes, pretrained=True)

    def _create_model(self, shape: Shape, classes: int, *, pretrained: bool) -> nn.Module:
        from timm import create_model

        channels, height, width = shape
        settings: dict[str, Any] = {"num_classes": classes, "in_chans": channels}
        try:
            model: nn.Module = create_model(
                self.network, pretrained, img_size=(height, width), **settings
            )
        except TypeError as error:
            if "img_size" not in str(error):
                raise
            model = create_model(self.network, pretrained, **settings)
        return model


@hookimpl
def gemkit_models() -> list[type[ModelPart]]:
    """Register the networks of timm."""
    return [Timm]
