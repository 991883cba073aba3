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
_LOST = re.compile(
    r"DataLoader worker \(pid.*\) (is killed by signal|exited unexpectedly)", re.DOTALL
)
_LOST_WORKER = (
    "a worker that reads the data ended or was killed, perhaps for lack of memory; use fewer "
    "workers (0 shows an error of the data set itself)"
)
_FULL = re.compile(r"shared memory.*No space left on device|workers are out of shared memory")
_FULL_SHM = (
    "/dev/shm, through which workers hand over the data, is probably full; enlarge it "
    "(`--shm-size` of a container) or use fewer workers"
)
_TOO_MANY_FILES = re.compile(r"Too many open files(?: in system)?(?:: (['\"].+))?")
_CLOSE_FILES = (
    "raise the limit (`ulimit -n`), use fewer workers, or close files that the data set opens"
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


def problem_of_workers(error: BaseException) -> str | None:
    """Return what keeps the workers of a data loader from their work, and the way out, if it does.

    torch raises it in whatever code runs then, or the tensors of a worker cannot be received, or a
    worker sends it as a text. The signal that ended a worker may be in the cause alone.
    """
    if not isinstance(error, OSError | EOFError | RuntimeError):
        return None
    text, code = f"{error}\n{error.__cause__ or ''}", getattr(error, "errno", None)
    many = _TOO_MANY_FILES.search(text)
    if many or code in (errno.EMFILE, errno.ENFILE):
        last = f", so {many[1]} cannot be opened" if many and many[1] else ""
        return f"too many files are open{last}; {_CLOSE_FILES}"
    if _FULL.search(text) or (
        code == errno.ENOSPC and _passes(error, "multiprocessing/synchronize.py")
    ):
        return _FULL_SHM
    if isinstance(error, RuntimeError):
        return _LOST_WORKER if _LOST.match(text) else None
    return _LOST_WORKER if _passes(error, "torch/multiprocessing/reductions.py") else None


def _passes(error: BaseException, file: str) -> bool:
    """Whether an error was raised in a file, or in what it called."""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return any(Path(own).match(file) for own in files)


@contextmanager
def memory_explained(saved: str | Callable[[], str] = "") -> Iterator[None]:
    """Report too little memory as a `TooLittleMemoryError`; `saved` says what is kept.

    What keeps the workers of a data loader from their work is an error of the data.
    """
    try:
        yield
    except TooLittleMemoryError:
        raise
    except Exception as error:
        if problem := problem_of_workers(error):
            raise DataError("; ".join(filter(None, [problem, said(saved)]))) from error
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
