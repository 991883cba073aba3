"""Errors of the machine, as one message: too little memory, a failing disk, a killed process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC

from gemkit.core.errors import LostProcessError, StorageError
from gemkit.core.memory import memory_explained, said
from gemkit.training.processes import if_lost, is_loss, loss_text


@contextmanager
def explained(saved: str | Callable[[], str]) -> Iterator[None]:
    """Turn an error of the machine into one message; `saved` says what is kept.

    A function is called when the error is there, since what is kept may change until then.
    """
    try:
        with if_lost(lambda: said(saved)), memory_explained(saved):
            yield
    except RuntimeError as error:
        if not is_loss(error):
            raise
        raise LostProcessError(_sentence(loss_text(), said(saved))) from error
    except BrokenPipeError:  # of a stream or a plugin, not of the disk
        raise
    except OSError as error:
        what = error.filename or "a file"
        way_out = (
            "make room" if error.errno in (ENOSPC, EDQUOT) else "check the disk and the permissions"
        )
        reason = f"cannot read or write {what}: {error.strerror or error}"
        raise StorageError(_sentence(reason, way_out, said(saved))) from error


def _sentence(*parts: str) -> str:
    return "; ".join(filter(None, parts))
