"""Decoded images kept on disk, and believed only when their hash is right.

A cache file belongs to one folder and one way of reading it; a change of either makes it worthless
and it is written anew. It can be deleted at any time.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gemkit.data.listing import Listing
from gemkit.errors import DataError, StorageError
from gemkit.files import name_of, open_plain

_FORMAT = 2
"""Counts the ways images have been decoded: what an older one wrote is made anew."""


def cache_folder() -> Path:
    """Return where decoded images are kept: `GEMKIT_CACHE`, or the user's cache folder."""
    own = os.environ.get("GEMKIT_CACHE")
    usual = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(usual) / "gemkit"


def cache_file(root: Path, options: object) -> Path:
    """Name the file for a folder of images, read in one way."""
    name = hashlib.sha256(json.dumps([str(root.resolve()), options]).encode()).hexdigest()
    return cache_folder() / f"images-{name[:24]}.safetensors"


def fingerprint(listing: Listing, chosen: Sequence[int]) -> str:
    """Sum up name, size and time of change of the chosen files, and who decodes them."""
    summary = hashlib.sha256(f"{_FORMAT} {version('pillow')}".encode())
    root = len(str(listing.root))
    for number in chosen:
        file = listing.files[number]
        try:
            status = os.stat(file)  # noqa: PTH116 - objects for so many paths cost seconds
        except OSError as problem:
            raise DataError(f"cannot read {file}: {problem.strerror}") from problem
        line = f"{file[root:]}\0{status.st_size}\0{status.st_mtime_ns}\0"
        summary.update(line.encode("utf-8", "surrogateescape"))
    return summary.hexdigest()


def recall(file: Path, expected: str, count: int) -> Tensor | None:
    """Return the images of a cache file, if it is whole and belongs to what is expected."""
    try:
        with open_plain(file) as plain, safe_open(name_of(plain), framework="pt") as content:
            about = content.metadata() or {}
            if about.get("fingerprint") != expected or "images" not in content.keys():  # noqa: SIM118
                return None
            images: Tensor = content.get_tensor("images")
    except (OSError, StorageError, SafetensorError, ValueError):
        return None
    shape = list(images.shape)
    sound = images.dtype == torch.uint8 and len(shape) == 4 and shape[:2] == [count, 3]
    return images if sound and about.get("sha256") == _hash(images) else None


def remember(file: Path, images: Tensor, expected: str) -> None:
    """Write a cache file, all of it or nothing; where that is not possible, do without."""
    about = {"fingerprint": expected, "sha256": _hash(images)}
    with suppress(OSError, SafetensorError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            whole = Path(scratch) / file.name
            save_file({"images": images}, whole, metadata=about)
            whole.replace(file)


def _hash(images: Tensor) -> str:
    return hashlib.sha256(images.numpy().data).hexdigest()
