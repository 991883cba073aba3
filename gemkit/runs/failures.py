"""Errors of the machine, as one message: too little memory, a failing disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC

import torch

from gemkit.core.errors import StorageError, TrainingError

_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
_LESS = (
    "lower --batch-size, choose a smaller network (or -o model.width), train with --precision "
    "bf16, or use a device with more memory"
)


def lacks_memory(error: Exception) -> bool:
    """Return whether an exception says that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


@contextmanager
def explained(saved: str) -> Iterator[None]:
    """Turn a lack of memory or a failing disk into one message; `saved` says what is kept."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise TrainingError(f"there is not enough memory ({reason}); {_LESS}; {saved}") from error
    except OSError as error:
        what = error.filename or "a file"
        way_out = (
            "make room" if error.errno in (ENOSPC, EDQUOT) else "check the disk and the permissions"
        )
        raise StorageError(
            f"cannot read or write {what}: {error.strerror or error}; {way_out}; {saved}"
        ) from error
