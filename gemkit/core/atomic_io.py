"""Open only regular files, and write files atomically.

A path given by the user may contain symbolic links. The contents of a folder, such as a run
folder, are untrusted: no link below `within` is followed. Checks are made on the open descriptor,
not on the path, so a file cannot be swapped between the check and the use.
"""

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from gemkit.core.errors import OptionError, StorageError

_PREFIX, _SUFFIX = ".gemkit-", ".tmp"
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


def named_path(given: Path | str) -> Path:
    """Return a path that a user named; an empty text would be the current folder."""
    if given == "":
        raise OptionError("the path is empty; write a dot for the current folder")
    return Path(given)


def open_plain(path: Path | str, mode: str = "rb", *, within: Path | None = None) -> BinaryIO:
    """Open a regular file; refuse a pipe, socket or device with a `StorageError`.

    Below `within`, refuse symbolic links, and refuse to write to a file with several hard links:
    another of its names may be any file on the same disk. `mode` must be binary and must not
    truncate.
    """

    def opener(_: str, flags: int) -> int:
        assert not flags & os.O_TRUNC, "opening would truncate the file before it is checked"
        if within is None:
            return _open_checked(path, path, flags, None)
        with open_folder(Path(path).parent, within) as folder:
            return _open_checked(path, Path(path).name, flags, folder)

    return cast(BinaryIO, open(path, mode, opener=opener))


def _open_checked(path: Path | str, name: Path | str, flags: int, folder: int | None) -> int:
    """Open without blocking, then check what was opened."""
    links = 0 if folder is None else os.O_NOFOLLOW
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | links
    with _explain_errors(path, name, folder, _FILE):
        handle = os.open(name, flags, 0o666, dir_fd=folder)
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(status.st_mode):
            raise wrong_kind(path, status.st_mode, _FILE)
        if folder is not None and flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
            raise StorageError(
                f"{path} has another hard link, and writing would change that file too; "
                "replace it with a copy"
            )
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextmanager
def open_folder(path: Path, within: Path | None = None) -> Iterator[int]:
    """Open a folder; follow links only down to `within`, or all of them if it is None."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    place = path if within is None else within
    handle = os.open(place, flags)
    try:
        for step in path.relative_to(place).parts:
            place /= step
            with _explain_errors(place, step, handle, _FOLDER):
                inner = os.open(step, flags | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _explain_errors(
    path: Path | str, name: Path | str, folder: int | None, wanted: str
) -> Iterator[None]:
    """Name the kind of file that cannot be opened; add the full path to other errors."""
    try:
        yield
    except OSError as error:
        kinds = {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENOTDIR, errno.EOPNOTSUPP}
        if error.errno in kinds:
            with suppress(OSError):  # for the message only: the file may have changed by now
                mode = os.stat(name, dir_fd=folder, follow_symlinks=folder is None).st_mode
                if wanted != _FILE or not stat.S_ISREG(mode):
                    raise wrong_kind(path, mode, wanted) from error
        error.filename = os.fspath(path)
        raise


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name a file in errors of the system, which names none once it is open."""
    try:
        yield
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def wrong_kind(path: Path | str, mode: int, wanted: str = _FILE) -> StorageError:
    """Return the error for a path that leads to something else than what is wanted."""
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    return StorageError(f"{path} is {kind}, not {wanted}; use {wanted} instead")


def refuse_folders(folder: Path, names: Iterable[str]) -> None:
    """Refuse folders in place of files with these names; a link may lead to one."""
    for path in (folder / name for name in names):
        if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114 - may raise
            raise StorageError(f"{path} is a folder, not {_FILE}; move it away")


def kind_at(path: Path) -> str:
    """Return what a path leads to, with an article: a file, a folder, a pipe, …"""
    return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "something else")


def fd_path(file: BinaryIO) -> str:
    """Return a path to an open file, for libraries that only take paths."""
    return f"/dev/fd/{file.fileno()}"


def read(path: Path, limit: int = 1 << 26, *, within: Path | None = None) -> bytes:
    """Read a whole file; raise `OSError` before reading if it is larger than `limit` bytes."""
    with open_plain(path, within=within) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))
        return file.read(limit)


def write_atomic(data: bytes, path: Path, *, within: Path | None = None) -> None:
    """Write a temporary file and rename it, so that `path` never holds a partial file.

    The data is synced to disk before the rename. A link at `path` is replaced, not followed.
    """
    temporary = path.with_name(f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}")
    with open_folder(path.parent, within) as folder:

        def opener(_: str, flags: int) -> int:
            return _open_checked(temporary, temporary.name, flags, folder)

        try:
            with named(path):
                with open(temporary, "xb", opener=opener) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                with _explain_errors(path, path.name, folder, _FILE):
                    os.replace(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            _remove(temporary.name, folder)
        with suppress(OSError):  # some file systems cannot sync a folder; the file is complete
            os.fsync(folder)


def check_writable(folder: Path) -> None:
    """Raise `OSError` if no file can be made in a folder, or in the one it would be made in."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    handle, name = tempfile.mkstemp(_SUFFIX, _PREFIX, folder)
    os.close(handle)
    Path(name).unlink()


def list_folder(folder: Path, *, within: Path | None = None) -> list[str]:
    """List a folder, or nothing if it does not exist; refuse links, pipes and devices."""
    found = []
    try:
        with open_folder(folder, within) as handle, os.scandir(handle) as entries:
            for entry in entries:
                if entry.name.startswith(".#"):
                    continue  # an editor's lock, usually a dangling link; it is never opened
                with suppress(FileNotFoundError):  # renamed or removed in the meantime
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                        raise wrong_kind(folder / entry.name, mode, _FILE)
                    found.append(entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot list {folder}: {error.strerror or error}") from error
    return found


def remove(path: Path, *, within: Path) -> None:
    """Remove a file below a folder, if it exists."""
    with open_folder(path.parent, within) as folder:
        _remove(path.name, folder)


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def remove_temporary(folder: Path, *, within: Path) -> None:
    """Remove the temporary files of killed processes; no process may be writing here."""
    for name in list_folder(folder, within=within):
        if is_temporary(name):
            remove(folder / name, within=within)


def is_temporary(name: str) -> bool:
    """Return whether this is the name of a temporary file of `write_atomic`."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)
