"""Errors of the machine, as one message: too little memory, a failing disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC

from gemkit.core.errors import StorageError
from gemkit.core.memory import memory_explained


@contextmanager
def explained(saved: str) -> Iterator[None]:
    """Turn a lack of memory or a failing disk into one message; `saved` says what is kept."""
    try:
        with memory_explained(saved):
            yield
    except OSError as error:
        what = error.filename or "a file"
        way_out = (
            "make room" if error.errno in (ENOSPC, EDQUOT) else "check the disk and the permissions"
        )
        raise StorageError(
            f"cannot read or write {what}: {error.strerror or error}; {way_out}; {saved}"
        ) from error
