"""Finding the images of a folder with one sub-folder for each class."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from gemkit.data.decode import FORMATS
from gemkit.errors import DataError, did_you_mean

Links = Literal["inside", "any"]
_DEEPEST = 8


@dataclass(frozen=True)
class Listing:
    """Image files under a root, the class of each, and the groups they come in (see `divide`).

    Files are full paths as text: there may be a million, and objects for paths cost seconds.
    """

    root: Path
    files: tuple[str, ...]
    labels: Tensor
    groups: Mapping[str, Tensor]
    classes: tuple[str, ...]


def listing(
    root: Path, found: Mapping[str, Iterable[tuple[str, int]]], classes: Iterable[str]
) -> Listing:
    """Put files and labels of several groups into one list."""
    files: list[str] = []
    labels: list[int] = []
    groups = {}
    for group, pairs in found.items():
        first = len(files)
        for file, label in pairs:
            files.append(file)
            labels.append(label)
        groups[group] = torch.arange(first, len(files))
    return Listing(root, tuple(files), torch.tensor(labels), groups, tuple(classes))


def class_names(folder: Path) -> list[str]:
    """Return the names of the class folders in a folder, sorted."""
    names = [entry.name for entry in entries(folder) if is_folder(entry)]
    if not names:
        raise DataError(f"{folder} has no class folders: put the images of each class into one")
    return names


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """List a folder, sorted, without hidden files."""
    try:
        with os.scandir(folder) as found:
            visible = [entry for entry in found if not entry.name.startswith(".")]
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        missing = isinstance(problem, FileNotFoundError)
        way_out = "; put the images there, or name the folder with --data-dir" if missing else ""
        raise DataError(f"cannot list {folder}: {reason}{way_out}") from problem
    return sorted(visible, key=lambda entry: entry.name)


def labelled(
    root: Path, folder: Path, classes: Sequence[str], links: Links = "inside"
) -> Iterator[tuple[str, int]]:
    """Go through the images of every class folder in a folder, each with its class's number."""
    check_links(root, folder, links)
    numbers = {name: number for number, name in enumerate(classes)}
    for name in class_names(folder):
        if name not in numbers:
            raise DataError(
                f"{folder / name} is a class that the training images do not have"
                f"{did_you_mean(name, classes)}"
            )
        files = list(_images_in(root, folder / name, links))
        if not files:
            raise DataError(
                f"{folder / name} has no images; their names end in {', '.join(FORMATS)}"
            )
        yield from ((file, numbers[name]) for file in files)


def _images_in(root: Path, folder: Path, links: Links, depth: int = 0) -> Iterator[str]:
    """Go through the image files of a folder and the folders in it, in order of their names."""
    if depth > _DEEPEST:
        raise DataError(f"{folder} is too deep to search; does a link lead in a circle?")
    check_links(root, folder, links)
    for entry in entries(folder):
        if is_folder(entry):
            yield from _images_in(root, folder / entry.name, links, depth + 1)
        elif f".{entry.name.rpartition('.')[2].lower()}" in FORMATS:
            if entry.is_symlink():
                check_links(root, folder / entry.name, links)
            yield entry.path


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether it is a folder, or a link to one; what cannot be told is a file."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def check_links(root: Path, path: Path, links: Links = "inside") -> None:
    """Refuse a path with a link out of the data set: what it shows may change or be private.

    Every step below the root is looked at; the root itself may be a link to where the data are.
    """
    if links == "any":
        return
    place = root
    for step in path.relative_to(root).parts:
        place /= step
        if place.is_symlink() and not _leads_into(root, place):
            raise DataError(
                f"{place} is a link that leads out of {root}; copy what it shows, or, with "
                "imagefolder, follow it with -o dataset.links=any"
            )


def _leads_into(root: Path, link: Path) -> bool:
    try:
        return link.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # it leads in a circle
        return False
