"""Find the images of a folder that has one sub-folder per class."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from gemkit.core.errors import DataError, did_you_mean
from gemkit.data.decode import FORMATS

Links = Literal["inside", "any"]
_MAX_DEPTH = 8


@dataclass(frozen=True)
class ImageList:
    """Image files under a root, their labels, and the groups they come in (see `make_splits`).

    Files are full paths as strings, because a million Path objects take seconds.
    """

    root: Path
    files: tuple[str, ...]
    labels: Tensor
    groups: Mapping[str, Tensor]
    classes: tuple[str, ...]


def image_list(
    root: Path, found: Mapping[str, Iterable[tuple[str, int]]], classes: Iterable[str]
) -> ImageList:
    """Join the (file, label) pairs of several groups into one list."""
    files: list[str] = []
    labels: list[int] = []
    groups = {}
    for group, pairs in found.items():
        first = len(files)
        for file, label in pairs:
            files.append(file)
            labels.append(label)
        groups[group] = torch.arange(first, len(files))
    return ImageList(root, tuple(files), torch.tensor(labels), groups, tuple(classes))


def class_names(folder: Path) -> list[str]:
    """Return the sorted names of the class folders in a folder."""
    names = [entry.name for entry in entries(folder) if is_folder(entry)]
    if not names:
        raise DataError(f"{folder} has no class folders; put the images of each class into one")
    return names


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """List a folder, sorted by name, without hidden files."""
    try:
        with os.scandir(folder) as found:
            visible = [entry for entry in found if not entry.name.startswith(".")]
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        missing = isinstance(problem, FileNotFoundError)
        way_out = "; put the images there, or name the folder with --data-dir" if missing else ""
        raise DataError(f"cannot list {folder}: {reason}{way_out}") from problem
    return sorted(visible, key=lambda entry: entry.name)


def labelled_images(
    root: Path, folder: Path, classes: Sequence[str], links: Links = "inside"
) -> Iterator[tuple[str, int]]:
    """Yield (file, label) for the images of every class folder in a folder."""
    check_links(root, folder, links)
    labels = {name: label for label, name in enumerate(classes)}
    for name in class_names(folder):
        if name not in labels:
            raise DataError(
                f"{folder / name} is a class that the training images do not have"
                f"{did_you_mean(name, classes)}"
            )
        files = list(_find_images(root, folder / name, links))
        if not files:
            raise DataError(
                f"{folder / name} has no images (files that end in {', '.join(FORMATS)})"
            )
        yield from ((file, labels[name]) for file in files)


def _find_images(root: Path, folder: Path, links: Links, depth: int = 0) -> Iterator[str]:
    """Yield the image files of a folder and its sub-folders, sorted by name."""
    if depth > _MAX_DEPTH:
        raise DataError(f"{folder} is too deep to search; check for links in a circle")
    check_links(root, folder, links)
    for entry in entries(folder):
        if is_folder(entry):
            yield from _find_images(root, folder / entry.name, links, depth + 1)
        elif f".{entry.name.rpartition('.')[2].lower()}" in FORMATS:
            if entry.is_symlink():
                check_links(root, folder / entry.name, links)
            yield entry.path


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def check_links(root: Path, path: Path, links: Links = "inside") -> None:
    """Refuse a path with a link out of the data set, as its target may change or be private.

    Every component below the root is checked; the root itself may be a link.
    """
    if links == "any":
        return
    current = root
    for component in path.relative_to(root).parts:
        current /= component
        if current.is_symlink() and not _points_inside(root, current):
            raise DataError(
                f"{current} is a link that points outside {root}; copy its target, or, with "
                "imagefolder, follow it with -o dataset.links=any"
            )


def _points_inside(root: Path, link: Path) -> bool:
    try:
        return link.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # links in a circle
        return False
