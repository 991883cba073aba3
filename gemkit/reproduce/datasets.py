"""What is known of the paper's data sets without loading them."""

from pathlib import Path
from typing import Any, NamedTuple

from gemkit.data.standard import data_folder
from gemkit.presets.preset import Preset


class Known(NamedTuple):
    """A data set: its images in all training splits (0: do not reduce), their shape, its folder."""

    images: int
    channels: int
    size: int
    classes: int
    folder: str = ""


DATASETS = {
    "cifar10": Known(50_000, 3, 32, 10, "cifar-10-batches-py"),
    "cifar100": Known(50_000, 3, 32, 100, "cifar-100-python"),
    "tiny_imagenet": Known(100_000, 3, 64, 200, "tiny-imagenet-200"),
    "caltech101": Known(6_941, 3, 224, 101, "caltech101/101_ObjectCategories"),
    "imagefolder": Known(0, 3, 16, 10, "cifar"),  # as the presets `small` use it
    "digits": Known(0, 1, 8, 10),
}


def table_of_part(part: Any) -> dict[str, Any]:  # noqa: ANN401 - a name, or a table
    """Return a part as a table with its name."""
    return {"name": part} if isinstance(part, str) else dict(part)


def needs(presets: list[Preset], folder: Path | None) -> dict[str, bool]:
    """Return what these runs need, and whether it is there.

    Pretrained weights are listed as missing: whether they are in a cache is not known.
    """
    found: dict[str, bool] = {}
    for preset in presets:
        name = table_of_part(preset.dataset)["name"]
        known = DATASETS.get(name)
        if known and known.folder:
            found[name] = (data_folder(folder) / known.folder).exists()
        if table_of_part(preset.model).get("pretrained"):
            found["weights"] = False
    return found
