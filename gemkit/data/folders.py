"""Data sets of image files: your own folders, TinyImageNet and Caltech-101."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from gemkit.core.errors import DataError
from gemkit.data.binary import file_errors, read_bytes
from gemkit.data.class_folders import (
    Links,
    check_links,
    class_names,
    entries,
    image_list,
    is_folder,
    labelled_images,
)
from gemkit.data.images import ImageDataset
from gemkit.data.part import DatasetPart
from gemkit.data.source import Data
from gemkit.data.standard import data_folder, download_into, require_files
from gemkit.plugins.markers import hookimpl

_SPLITS = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}


class ImageFolder(ImageDataset):
    """Your own images: one folder for each class.

    Splits are the folders train, val (or validation) and test. A missing split is taken from
    train; without a folder train, all images are split. Images become RGB and are stretched to a
    square.
    """

    name: ClassVar[str] = "imagefolder"
    argument = "path"

    path: str = Field(
        min_length=1, max_length=4096, description="the folder, absolute or relative to --data-dir"
    )
    size: int | None = Field(
        default=None,
        ge=8,
        le=1024,
        description="height and width; by default the size of the images if all are squares of the "
        "same size up to 64 pixels, else 224",
    )
    pad: int | None = Field(
        default=None,
        ge=0,
        le=1024,
        description="padding of random crops in training; by default an eighth of the size",
    )
    flip: bool = Field(default=True, description="flip half of the images in training")
    links: Links = Field(
        default="inside", description="follow links only inside the folder, or any"
    )

    def load(self, folder: Path | None) -> Data:
        """List the images and read them."""
        root = (folder or Path()).expanduser() / Path(self.path).expanduser()
        groups = _split_folders(root.absolute(), self.links)
        classes = class_names(groups["train"])
        found = {
            group: list(labelled_images(root.absolute(), subfolder, classes, self.links))
            for group, subfolder in groups.items()
        }
        images = image_list(root.absolute(), found, classes)
        return self.from_files(images, self.size, self.pad, self.flip)


def _split_folders(root: Path, links: Links) -> dict[str, Path]:
    """Find the folder of each split; only the root if it has no train with class folders."""
    folders = {entry.name for entry in entries(root) if is_folder(entry)}
    if "train" in folders:
        check_links(root, root / "train", links)
    if "train" not in folders or not any(map(is_folder, entries(root / "train"))):
        return {"train": root}
    found = {
        split: root / name for split, names in _SPLITS.items() for name in names if name in folders
    }
    if "test" not in found and "validation" in found:
        # As with ImageNet: without test images, results are reported on val.
        found["test"] = found.pop("validation")
    return found


class TinyImageNet(ImageDataset):
    """110,000 colour photographs of 64 × 64 pixels in 200 classes.

    90,000 for training, 10,000 for validation, and its own 10,000 validation images for test;
    augmented by crops (padding 4) and flips. Reads tiny-imagenet-200/ in --data-dir.
    """

    name: ClassVar[str] = "tiny_imagenet"
    url: ClassVar[str] = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    md5: ClassVar[str] = "90528d7ca1a48142e341f4ef8d21d0de"

    def load(self, folder: Path | None) -> Data:
        """List the images and read them."""
        where = data_folder(folder)
        root = where / "tiny-imagenet-200"
        annotations = root / "val" / "val_annotations.txt"
        required = [root / "train", root / "val" / "images", annotations]
        require_files(self.name, required, where, "about 240 MB")
        check_links(root, root / "train")
        classes = class_names(root / "train")
        found = {
            "train": list(labelled_images(root, root / "train", classes)),
            "test": list(_validation(root, annotations, classes)),
        }
        return self.from_files(image_list(root, found, classes), size=64, pad=4, flip=True)

    def download(self, folder: Path | None) -> None:
        """Download and unpack the archive."""
        where = data_folder(folder)
        if not (where / "tiny-imagenet-200").exists():
            download_into(self.name, where, self._fetch)

    def _fetch(self, where: Path) -> None:
        from torchvision.datasets.utils import download_and_extract_archive

        download_and_extract_archive(self.url, str(where), md5=self.md5)


def _validation(root: Path, annotations: Path, classes: list[str]) -> Iterator[tuple[str, int]]:
    """Yield (file, label) for the validation images."""
    check_links(root, annotations)
    for image, label in _read_annotations(annotations, classes):
        file = annotations.parent / "images" / image
        check_links(root, file)
        yield str(file), label


def _read_annotations(file: Path, classes: list[str]) -> Iterator[tuple[str, int]]:
    """Yield (image, label) of each line; a line holds file, class and a bounding box."""
    labels = {name: label for label, name in enumerate(classes)}
    with file_errors(file):
        lines = read_bytes(file, 2**24).decode("utf-8", "replace").splitlines()
        for number, line in enumerate(lines, start=1):
            image, _, rest = line.partition("\t")
            name = rest.partition("\t")[0]
            if name not in labels or not image or Path(image).name != image:
                raise DataError(f"does not name an image and one of the classes in line {number}")
            yield image, labels[name]


class Caltech101(ImageDataset):
    """8,677 photographs of objects in 101 classes.

    60 % for training, 20 % for validation, 20 % for test; stretched to 224 × 224 pixels and not
    augmented, as in the paper. Reads caltech101/101_ObjectCategories/ in --data-dir.
    """

    name: ClassVar[str] = "caltech101"

    size: int = Field(default=224, ge=8, le=1024, description="height and width")

    def load(self, folder: Path | None) -> Data:
        """List the images and read them."""
        where = data_folder(folder)
        root = where / "caltech101" / "101_ObjectCategories"
        require_files(self.name, [root], where, "about 130 MB")
        names = [name for name in class_names(root) if name != _BACKGROUND]
        pairs = labelled_images(root, root, [*names, _BACKGROUND])
        # The paper uses the 101 classes without the background images.
        found = {"train": [pair for pair in pairs if pair[1] < len(names)]}
        return self.from_files(image_list(root, found, names), self.size, pad=0, flip=False)

    def download(self, folder: Path | None) -> None:
        """Download and unpack the archive."""

        def fetch(where: Path) -> None:
            from torchvision import datasets

            datasets.Caltech101(str(where), download=True)

        where = data_folder(folder)
        if not (where / "caltech101" / "101_ObjectCategories").exists():
            download_into(self.name, where, fetch)


_BACKGROUND = "BACKGROUND_Google"


@hookimpl
def gemkit_datasets() -> list[type[DatasetPart]]:
    """Register all three."""
    return [ImageFolder, TinyImageNet, Caltech101]
