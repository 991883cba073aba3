"""Plain files: opened only if they are plain, written whole or not at all.

A path that a user typed may lead through links. What lies inside a folder that a user typed, such
as a run's, may come from anybody: `within` names that folder, and no link below it is followed.
Every check is made on the descriptor that is then used, so there is no moment to swap files.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from gemkit.errors import StorageError

_BEGIN, _END = ".gemkit-", ".tmp"
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_FILE, _FOLDER = "a plain file", "a folder"


# --- opening -------------------------------------------------------------------------------------


def open_plain(path: Path | str, mode: str = "rb", *, within: Path | None = None) -> BinaryIO:
    """Open a plain file; a pipe, socket or device is a `StorageError` at once.

    Below `within`, a link is refused, and so is writing to a file that has a second name: a hard
    link may lead to any other file of the same disk. `mode` is binary, and never truncates.
    """

    def opener(_: str, flags: int) -> int:
        assert not flags & os.O_TRUNC, "a file would be emptied before it is checked"
        if within is None:
            return _descriptor(path, path, flags, None)
        with open_folder(Path(path).parent, within) as folder:
            return _descriptor(path, Path(path).name, flags, folder)

    return cast(BinaryIO, open(path, mode, opener=opener))


def _descriptor(path: Path | str, name: Path | str, flags: int, folder: int | None) -> int:
    """Open a name without waiting, then check what was opened."""
    links = 0 if folder is None else os.O_NOFOLLOW
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | links
    with _explained(path, name, folder, _FILE):
        handle = os.open(name, flags, 0o666, dir_fd=folder)
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(status.st_mode):
            raise _refusal(path, status.st_mode, _FILE)
        if folder is not None and flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
            raise StorageError(
                f"{path} has a second name (a hard link), and writing would change that file too; "
                "put a copy in its place"
            )
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextmanager
def open_folder(path: Path, within: Path | None = None) -> Iterator[int]:
    """Open a folder; links are followed up to `within`, and everywhere where there is none."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    place = path if within is None else within
    handle = os.open(place, flags)
    try:
        for step in path.relative_to(place).parts:
            place /= step
            with _explained(place, step, handle, _FOLDER):
                inner = os.open(step, flags | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _explained(
    path: Path | str, name: Path | str, folder: int | None, wanted: str
) -> Iterator[None]:
    """Say what stands under a name that cannot be opened; other errors get the whole path."""
    try:
        yield
    except OSError as error:
        odd = {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENOTDIR, errno.EOPNOTSUPP}
        if error.errno in odd:
            with suppress(OSError):  # only for the words: it may have changed by now
                mode = os.stat(name, dir_fd=folder, follow_symlinks=folder is None).st_mode
                if wanted != _FILE or not stat.S_ISREG(mode):
                    raise _refusal(path, mode, wanted) from error
        error.filename = os.fspath(path)
        raise


def _refusal(path: Path | str, mode: int, wanted: str) -> StorageError:
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    return StorageError(f"{path} is {kind}, not {wanted}; it was left alone: use {wanted} instead")


def name_of(file: BinaryIO) -> str:
    """Return a path to an open file, for libraries that take nothing else."""
    return f"/dev/fd/{file.fileno()}"


# --- reading and writing -------------------------------------------------------------------------


def read(path: Path, limit: int = 1 << 26, *, within: Path | None = None) -> bytes:
    """Read a small file whole; a larger one is an `OSError`.

    A file is measured before memory is given to it.
    """
    with open_plain(path, within=within) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))
        return file.read(limit)


def put(data: bytes, path: Path, *, within: Path | None = None) -> None:
    """Write beside the target and rename, so that the name never stands for half a file.

    When this returns, the file outlasts a power cut. What had the name before stays until the new
    content is on disk. A link of that name is replaced, never followed.
    """
    beside = path.with_name(f"{_BEGIN}{secrets.token_hex(8)}{_END}")
    with open_folder(path.parent, within) as folder:

        def opener(_: str, flags: int) -> int:
            return _descriptor(beside, beside.name, flags, folder)

        try:
            with open(beside, "xb", opener=opener) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with _explained(path, path.name, folder, _FILE):
                os.replace(beside.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            _remove(beside.name, folder)
        with suppress(OSError):  # where a folder cannot be synced, the file is whole all the same
            os.fsync(folder)


# --- folders -------------------------------------------------------------------------------------


def names(folder: Path, *, within: Path | None = None) -> list[str]:
    """List a folder, or nothing where there is none; links, pipes and the like are refused."""
    found = []
    try:
        with open_folder(folder, within) as handle, os.scandir(handle) as entries:
            for entry in entries:
                if entry.name.startswith(".#"):
                    continue  # a lock that editors make, which nothing here opens
                with suppress(FileNotFoundError):  # it was renamed or removed just now
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                        raise _refusal(folder / entry.name, mode, _FILE)
                    found.append(entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot list {folder}: {error.strerror or error}") from error
    return found


def remove(path: Path, *, within: Path) -> None:
    """Remove a file below a folder, if it is there."""
    with open_folder(path.parent, within) as folder:
        _remove(path.name, folder)


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def sweep(folder: Path, *, within: Path) -> None:
    """Remove what a process left beside its files when it was killed while writing them.

    No other process may be writing into the folder.
    """
    for name in names(folder, within=within):
        if is_left_over(name):
            remove(folder / name, within=within)


def is_left_over(name: str) -> bool:
    """Tell whether this file was being written when its process was killed."""
    return name.startswith(_BEGIN) and name.endswith(_END)
