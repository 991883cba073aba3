"""Errors that a user can cause. Each message says what is wrong, where, why, and the way out.

The command line prints only the message and exits with code 2, or 3 for a collapse.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class GemkitError(Exception):
    """Base class of all errors that a user can cause."""


class GemkitWarning(UserWarning):
    """Something that a user of the Python API should know, and that does not end the work."""


class PluginError(GemkitError):
    """A plugin cannot be loaded, or registers something that is not allowed."""


class UnknownNameError(GemkitError):
    """No part, pruner, model or data set is registered under this name."""


class OptionError(GemkitError):
    """A field does not exist, or its value is out of bounds."""


class FitError(GemkitError):
    """Parts do not fit together; the message lists every conflict."""


class ImportanceError(GemkitError):
    """Importance has wrong keys, wrong shapes or values that are not finite."""


class CollapseError(GemkitError):
    """A layer lost every weight, or the network lost every path."""


class SignalError(GemkitError):
    """No signal or gradient passes through the network at initialization."""


class TrainingError(GemkitError):
    """Training diverged or cannot start."""


class TooLittleMemoryError(TrainingError):
    """Memory ran out; the message names what was being done, and what to reduce."""


class LostProcessError(TrainingError):
    """Another process of this run ended early; the message names it."""


class TicketError(GemkitError):
    """A ticket is damaged, is not a ticket, or does not fit the model."""


class CompactionError(GemkitError):
    """A network cannot be compacted without changing its outputs."""


class StorageError(GemkitError):
    """A file cannot be read or written: full disk, missing permission, broken drive."""


class CheckpointError(GemkitError):
    """A checkpoint is damaged, is not a checkpoint, or belongs to another run."""


class ModelError(GemkitError):
    """A network cannot be built, or weights do not fit it."""


class CheckError(GemkitError):
    """A sanity check cannot run, or its control would not be fair."""


class StudyError(GemkitError):
    """A study cannot be carried out: its executor does not start, or a stage of it fails."""


class DataError(GemkitError):
    """A data set is missing, damaged, or does not suit the request."""


_SIMILARITY = 0.65
"""Suggest 'gem_miner' for 'gem_minor' (0.89), but not 'random' for 'adam' (0.6)."""

_COMPARED = 100
"""Compare only so many characters: a name from a file may be very long."""


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """A signal asked the run to stop, and its state is saved."""

    def __init__(self, signal: int, message: str = "stopped by a signal") -> None:
        super().__init__(message)
        self.signal = signal


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x' or 'y'?"` for similar names, else list all if there are few."""
    options, name = sorted(known), name[:_COMPARED]
    close = get_close_matches(name, options, n=3, cutoff=_SIMILARITY)
    prefixed = [option for option in options if len(name) > 1 and option.startswith(name)]
    suggested = list(dict.fromkeys([*close, *prefixed]))[:3]
    if suggested:
        return "; did you mean " + " or ".join(f"'{option}'" for option in suggested) + "?"
    return "; there is " + ", ".join(options) if 0 < len(options) <= 40 else ""


def some(names: Sequence[str], most: int = 5) -> str:
    """List the first few names for a message, and count the rest."""
    text = ", ".join(repr(name) for name in names[:most]) or "none"
    return text if len(names) <= most else f"{text} ... and {len(names) - most} more"


def describe_error(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    return f"{type(error).__name__}: {lines[0]}"
