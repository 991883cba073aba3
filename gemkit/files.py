"""Files that are whole or not there: written beside their name, then renamed."""

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

_BEGIN, _END = ".gemkit-", ".tmp"


def put(data: bytes, path: Path) -> None:
    """Write beside the target and rename, so that the name never stands for half a file.

    When this returns, the file outlasts a power cut. What stood under the name before stays until
    the new content is on disk.
    """
    beside = path.parent / f"{_BEGIN}{secrets.token_hex(8)}{_END}"
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(path.parent)


def sweep(folder: Path) -> None:
    """Remove what a process left beside its files when it was killed while it wrote them.

    Nobody else may be writing into the folder.
    """
    if folder.is_dir():
        for path in filter(is_left_over, folder.iterdir()):
            path.unlink(missing_ok=True)


def is_left_over(path: Path) -> bool:
    """Tell whether this is a file that was being written when its process was killed."""
    return path.name.startswith(_BEGIN) and path.name.endswith(_END)


def _sync_folder(folder: Path) -> None:
    """Bring the new name to disk; where that is impossible, the file is whole all the same."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read(path: Path, limit: int = 1 << 26) -> bytes:
    """Read a small file whole; what is larger, or no ordinary file, is an `OSError`.

    A file is measured before memory is given to it, and no device or pipe is ever waited for.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))
        return file.read(limit)
