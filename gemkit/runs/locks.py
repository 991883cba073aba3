"""Locks: held by an open file, and released by the system when the process dies."""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gemkit.core.atomic_io import kind_at, named, open_plain
from gemkit.core.errors import OptionError, StorageError

_PATIENCE = 20
"""Attempts to get a lock, 0.05 s apart, since `gemkit runs` holds one briefly."""


def try_lock(handle: int, kind: int, patience: int = 1) -> bool:
    """Try to get a lock, up to `patience` times."""
    for attempt in range(patience):
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05 * (attempt + 1 < patience))
        else:
            return True
    return False


def lock_if_possible(file: BinaryIO) -> None:
    """Wait for the lock of an open file, and hold it until it is closed; not all disks have any."""
    with suppress(OSError):
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)


def hold(file: BinaryIO, what: Path) -> None:
    """Lock an open file until it is closed, and write this process into it."""
    try:
        held = try_lock(file.fileno(), fcntl.LOCK_EX, _PATIENCE)
    except OSError as error:
        raise StorageError(
            f"{what} cannot be locked, because its file system has no locks ({error.strerror}); "
            "use a folder on another disk"
        ) from error
    if not held:
        file.seek(0)
        holder = file.read(100).decode("utf-8", "replace").strip()
        raise OptionError(
            f"{what} is in use by another process ({holder}); wait for it, or stop it"
        )
    with named(what):
        file.truncate(0)
        os.write(file.fileno(), f"process {os.getpid()}\n".encode())  # or closing would try again


def is_removed(file: BinaryIO) -> bool:
    """Return whether an open file has no name any more."""
    return os.fstat(file.fileno()).st_nlink == 0


def check_target(target: Path) -> None:
    """Refuse what no file may replace: folders, pipes, sockets and devices, and links to them."""
    with suppress(FileNotFoundError):
        if (kind := kind_at(target)) != "a file":
            raise OptionError(f"{target} is {kind}, not a plain file; choose another --out instead")


@contextmanager
def reserved(target: Path) -> Iterator[None]:
    """Hold a file that long work will write, so that no other process writes it too.

    It is held by another file in the same folder, which is removed at the end. So this also
    refuses, before the work, a folder that cannot be written.
    """
    name = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]  # never too long
    beside = target.with_name(f".gemkit-{name}.lock")
    with ExitStack() as held:
        try:
            check_target(target)
            file = held.enter_context(open_plain(beside, "a+b", within=beside.parent))
            hold(file, target)
        except OSError as error:
            raise OptionError(
                f"cannot write {target}: {error.strerror or error}; choose another --out"
            ) from error
        if not is_removed(file):
            try:
                yield
            finally:
                with suppress(OSError):
                    beside.unlink()
            return
    with reserved(target):  # its last holder removed the file when it was done
        yield
