"""Any network of timm. The library is imported when one is named, not before: it takes seconds."""

from typing import Any, ClassVar

from pydantic import Field, field_validator
from torch import nn

from gemkit.errors import did_you_mean
from gemkit.hookspecs import hookimpl
from gemkit.models.blocks import Shape
from gemkit.models.library import LibraryNet
from gemkit.parts import ModelPart


class Timm(LibraryNet):
    """Any network of timm by its name there, such as timm:resnet18 or timm:vit_tiny_patch16_224."""

    name: ClassVar[str] = "timm"
    argument: ClassVar[str | None] = "network"
    library: ClassVar[str] = "timm"

    # Nothing but names: timm also takes addresses of repositories and folders, and a ticket could
    # then make somebody fetch from anywhere.
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
        """Build it, for the size of the images where it needs to know."""
        return self._created(shape, classes, pretrained=False)

    def fetch(self, model: nn.Module, shape: Shape, classes: int) -> nn.Module:
        """Build it again: timm fits its weights to channels, classes and sizes by itself."""
        return self._created(shape, classes, pretrained=True)

    def _created(self, shape: Shape, classes: int, *, pretrained: bool) -> nn.Module:
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
    """Offer every network of timm."""
    return [Timm]
