"""Cache of decoded images on disk, verified by hash.

A cache file belongs to one folder and one set of options. If either changes, it is rebuilt. It
can be deleted at any time.
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

from gemkit.core.atomic_io import fd_path, open_plain
from gemkit.core.errors import DataError, StorageError
from gemkit.data.class_folders import ImageList

_FORMAT = 2
"""Version of the decoder; caches of other versions are rebuilt."""


def cache_folder() -> Path:
    """Return the cache folder: `GEMKIT_CACHE`, or gemkit's folder in the user's cache."""
    given = os.environ.get("GEMKIT_CACHE")
    default = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(default) / "gemkit"


def cache_file(root: Path, options: object) -> Path:
    """Return the cache file of an image folder, read with these options."""
    name = hashlib.sha256(json.dumps([str(root.resolve()), options]).encode()).hexdigest()
    return cache_folder() / f"images-{name[:24]}.safetensors"


def fingerprint(images: ImageList, chosen: Sequence[int]) -> str:
    """Hash name, size and modification time of the chosen files, and the decoder's version."""
    summary = hashlib.sha256(f"{_FORMAT} {version('pillow')}".encode())
    root = len(str(images.root))
    for index in chosen:
        file = images.files[index]
        try:
            status = os.stat(file)  # noqa: PTH116 - Path objects are slow for so many files
        except OSError as problem:
            raise DataError(f"cannot read {file}: {problem.strerror}") from problem
        line = f"{file[root:]}\0{status.st_size}\0{status.st_mtime_ns}\0"
        summary.update(line.encode("utf-8", "surrogateescape"))
    return summary.hexdigest()


def load_cached(file: Path, key: str, count: int) -> Tensor | None:
    """Return the images of a cache file if it is intact and its fingerprint is `key`."""
    try:
        with open_plain(file) as plain, safe_open(fd_path(plain), framework="pt") as content:
            metadata = content.metadata() or {}
            if metadata.get("fingerprint") != key or "images" not in content.keys():  # noqa: SIM118
                return None
            images: Tensor = content.get_tensor("images")
    except (OSError, StorageError, SafetensorError, ValueError):
        return None
    shape = list(images.shape)
    valid = images.dtype == torch.uint8 and len(shape) == 4 and shape[:2] == [count, 3]
    return images if valid and metadata.get("sha256") == _hash(images) else None


def save_cached(file: Path, images: Tensor, key: str) -> None:
    """Write a cache file atomically; if that fails, continue without a cache."""
    metadata = {"fingerprint": key, "sha256": _hash(images)}
    with suppress(OSError, SafetensorError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            complete = Path(scratch) / file.name
            save_file({"images": images}, complete, metadata=metadata)
            complete.replace(file)


def _hash(images: Tensor) -> str:
    return hashlib.sha256(images.numpy().data).hexdigest()
