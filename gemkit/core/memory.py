"""Too little memory, as one message: what was being done, and what to reduce.

`during` names a phase and changes nothing else, so that everything between it and the command, or
the function that a user calls, sees the original exception. `memory_explained` is around those.
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

from gemkit.core.errors import DataError, GemkitError, TooLittleMemoryError

_NO_MEMORY = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to map segment",
    "bad_alloc",
    "status_alloc_failed",
)
_LOST_WORKER = re.compile(
    r"DataLoader worker \(pid.*\) (is killed by signal|exited unexpectedly)", re.DOTALL
)
LOST_WORKER = (
    "a worker that reads the data ended or was killed, perhaps for lack of memory; use fewer "
    "workers (0 shows an error of the data set itself)"
)
_MARK = "while "
_SMALLER = "choose a smaller network (or -o model.width)"
_MORE = "use a device with more memory"
_TRAINING = f"lower --batch-size, {_SMALLER}, train with --precision bf16, or {_MORE}"

_LIBRARIES = "loading libraries"
LESS = {
    _LIBRARIES: "end other programs, or raise the limit of memory (`ulimit -v`); if there is "
    "enough, the library may be on a disk mounted with noexec",
    "loading the data": "use fewer or smaller images (-o dataset.samples or dataset.size), stream "
    f"them from disk (-o dataset.memory=never), where the data set can, or {_MORE}",
    "building the network": f"{_SMALLER}, or {_MORE}",
    "scoring": "lower --batch-size, or the data that the scores use (-o scores.batches or "
    f"scores.per_class), {_SMALLER}, or {_MORE}",
    "saving a checkpoint": f"{_SMALLER}, an optimizer with less state (sgd), or {_MORE}: a "
    "checkpoint is copied before it is written",
    "loading a checkpoint": f"end other programs, or {_MORE}",
    "compacting": f"{_SMALLER}, or {_MORE}",
    "timing": f"lower --batch, {_SMALLER}, or {_MORE}",
}
"""Phase -> what to reduce, for the phases that are not training."""


def shortage(error: BaseException | None) -> BaseException | None:
    """Return the exception that says that memory ran out: this one, or one that caused it.

    Code that calls a user's function, or reads a file, reports any exception in its own words.
    """
    while error is not None:
        if _is_shortage(error):
            return error
        hidden = error.__suppress_context__
        error = error.__cause__ or (None if hidden else error.__context__)
    return None


def _is_shortage(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if isinstance(error, GemkitError):
        return False
    # By name, because torch is not imported for every command.
    words = str(error).lower()
    return type(error).__name__ == "OutOfMemoryError" or any(one in words for one in _NO_MEMORY)


@contextmanager
def during(phase: str) -> Iterator[None]:
    """Note the phase in an exception that says that memory ran out."""
    try:
        yield
    except Exception as error:
        if (lack := shortage(error)) is not None and not isinstance(error, TooLittleMemoryError):
            lack.add_note(f"{_MARK}{phase}")
        raise


def said(saved: str | Callable[[], str]) -> str:
    """Return what is kept; a function is called when the error is there, since it may change."""
    return saved if isinstance(saved, str) else saved()


def is_lost_worker(error: BaseException) -> bool:
    """Return whether a worker of a data loader is gone.

    torch says so in whatever code runs then, or the tensors of the worker cannot be received.
    """
    if isinstance(error, OSError | EOFError):
        files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
        return any(Path(file).match("torch/multiprocessing/reductions.py") for file in files)
    return isinstance(error, RuntimeError) and _LOST_WORKER.match(str(error)) is not None


@contextmanager
def memory_explained(saved: str | Callable[[], str] = "") -> Iterator[None]:
    """Report too little memory as a `TooLittleMemoryError`; `saved` says what is kept.

    A lost worker of a data loader is an error of the data: it may have had too little memory.
    """
    try:
        yield
    except TooLittleMemoryError:
        raise
    except Exception as error:
        if is_lost_worker(error):
            raise DataError("; ".join(filter(None, [LOST_WORKER, said(saved)]))) from error
        if (lack := shortage(error)) is None:
            raise
        raise TooLittleMemoryError(_sentence(lack, said(saved))) from error


def _sentence(lack: BaseException, saved: str) -> str:
    """Word what was being done, from the outermost phase to the innermost, and what to reduce."""
    notes = [note for note in getattr(lack, "__notes__", []) if note.startswith(_MARK)]
    phases = list(dict.fromkeys(note.removeprefix(_MARK) for note in notes))
    phases = [_LIBRARIES] if isinstance(lack, ImportError) else phases
    while_ = f" {_MARK}{': '.join(reversed(phases))}" if phases else ""
    reason = str(lack).strip().partition("\n")[0] or type(lack).__name__
    less = LESS.get(phases[0] if phases else "", _TRAINING)
    return "; ".join(filter(None, [f"there is not enough memory{while_} ({reason})", less, saved]))
