"""Data sets that are folders of image files: anybody's own, TinyImageNet and Caltech-101."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from gemkit.data.binary import read_bytes, reading
from gemkit.data.images import ImageDataset
from gemkit.data.listing import (
    Links,
    check_links,
    class_names,
    entries,
    is_folder,
    labelled,
    listing,
)
from gemkit.data.source import Data
from gemkit.data.standard import fetching, home_of, require
from gemkit.errors import DataError
from gemkit.hookspecs import hookimpl
from gemkit.parts import DatasetPart

_NAMES = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}


class ImageFolder(ImageDataset):
    """Your own images: one folder for each class.

    Splits are the folders train, val (or validation) and test where they exist; what is missing
    is taken out of train, and all three are where there is no train. Every image becomes RGB and
    is stretched to a square.
    """

    name: ClassVar[str] = "imagefolder"
    argument = "path"

    path: str = Field(
        min_length=1, max_length=4096, description="the folder; a relative one is in --data-dir"
    )
    size: int | None = Field(
        default=None,
        ge=8,
        le=1024,
        description="height and width; by default the images' own where all are the same square "
        "of up to 64 pixels, else 224",
    )
    pad: int | None = Field(
        default=None,
        ge=0,
        le=1024,
        description="pixels by which crops may move in training; by default an eighth of the size",
    )
    flip: bool = Field(default=True, description="mirror half of the images in training")
    links: Links = Field(
        default="inside", description="whether links may lead out of the folder: inside or any"
    )

    def load(self, folder: Path | None) -> Data:
        """List the images and read them."""
        root = (folder or Path()).expanduser() / Path(self.path).expanduser()
        groups = _split_folders(root.absolute(), self.links)
        classes = class_names(groups["train"])
        found = {
            group: list(labelled(root.absolute(), place, classes, self.links))
            for group, place in groups.items()
        }
        listed = listing(root.absolute(), found, classes)
        return self.from_files(listed, self.size, self.pad, self.flip)


def _split_folders(root: Path, links: Links) -> dict[str, Path]:
    """Find the folder of each split; the root is all there is where it has no train of classes."""
    folders = {entry.name for entry in entries(root) if is_folder(entry)}
    if "train" in folders:
        check_links(root, root / "train", links)
    if "train" not in folders or not any(map(is_folder, entries(root / "train"))):
        return {"train": root}
    found = {
        split: root / name for split, names in _NAMES.items() for name in names if name in folders
    }
    if "test" not in found and "validation" in found:
        # As with ImageNet: where nobody gave test images, val is what results are reported on.
        found["test"] = found.pop("validation")
    return found


class TinyImageNet(ImageDataset):
    """110,000 colour photographs of 64 × 64 pixels in 200 classes.

    90,000 for training, 10,000 for validation, and its own validation images, 10,000, for test;
    trained with crops (padding 4) and flips. Reads tiny-imagenet-200/ in --data-dir.
    """

    name: ClassVar[str] = "tiny_imagenet"
    address: ClassVar[str] = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    md5: ClassVar[str] = "90528d7ca1a48142e341f4ef8d21d0de"

    def load(self, folder: Path | None) -> Data:
        """List the images and read them."""
        where = home_of(folder)
        root = where / "tiny-imagenet-200"
        annotations = root / "val" / "val_annotations.txt"
        require(self.name, [root / "train", root / "val" / "images", annotations], where, _TRAFFIC)
        check_links(root, root / "train")
        classes = class_names(root / "train")
        found = {
            "train": list(labelled(root, root / "train", classes)),
            "test": list(_validation(root, annotations, classes)),
        }
        return self.from_files(listing(root, found, classes), size=64, pad=4, flip=True)

    def download(self, folder: Path | None) -> None:
        """Fetch and unpack the archive."""
        where = home_of(folder)
        if not (where / "tiny-imagenet-200").exists():
            fetching(self.name, where, self._fetch)

    def _fetch(self, where: Path) -> None:
        from torchvision.datasets.utils import download_and_extract_archive

        download_and_extract_archive(self.address, str(where), md5=self.md5)


_TRAFFIC = "about 240 MB"


def _validation(root: Path, annotations: Path, classes: list[str]) -> Iterator[tuple[str, int]]:
    """Go through the validation images, each with its class's number."""
    check_links(root, annotations)
    for image, number in _annotated(annotations, classes):
        file = annotations.parent / "images" / image
        check_links(root, file)
        yield str(file), number


def _annotated(file: Path, classes: list[str]) -> Iterator[tuple[str, int]]:
    """Read which class each validation image is of: lines of file, class and a box."""
    numbers = {name: number for number, name in enumerate(classes)}
    with reading(file):
        lines = read_bytes(file, 2**24).decode("utf-8", "replace").splitlines()
        for number, line in enumerate(lines, start=1):
            image, _, rest = line.partition("\t")
            label = rest.partition("\t")[0]
            if label not in numbers or not image or Path(image).name != image:
                raise DataError(f"does not name an image and one of the classes in line {number}")
            yield image, numbers[label]


class Caltech101(ImageDataset):
    """8,677 photographs of objects in 101 classes.

    60 % for training, 20 % for validation, 20 % for test; stretched to 224 × 224 pixels, without
    augmentation, as in the paper. Reads caltech101/101_ObjectCategories/ in --data-dir.
    """

    name: ClassVar[str] = "caltech101"

    size: int = Field(default=224, ge=8, le=1024, description="height and width")

    def load(self, folder: Path | None) -> Data:
        """List the images and read them."""
        where = home_of(folder)
        root = where / "caltech101" / "101_ObjectCategories"
        require(self.name, [root], where, "about 130 MB")
        names = [name for name in class_names(root) if name != _CLUTTER]
        pairs = labelled(root, root, [*names, _CLUTTER])
        # Pictures of nothing in particular: the paper has 101 classes, not 102.
        found = {"train": [pair for pair in pairs if pair[1] < len(names)]}
        return self.from_files(listing(root, found, names), self.size, pad=0, flip=False)

    def download(self, folder: Path | None) -> None:
        """Fetch and unpack the archive."""

        def fetch(where: Path) -> None:
            from torchvision import datasets

            datasets.Caltech101(str(where), download=True)

        where = home_of(folder)
        if not (where / "caltech101" / "101_ObjectCategories").exists():
            fetching(self.name, where, fetch)


_CLUTTER = "BACKGROUND_Google"


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Offer all three."""
    return [ImageFolder, TinyImageNet, Caltech101]
