"""Every error a user can cause, each with one message that says what, which, why and the way out.

The command line prints the message alone and exits with code 2; from Python they are ordinary
exceptions under one base.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class GemkitError(Exception):
    """A mistake or a damaged input, explained in one message for the person at the keyboard."""


class PluginError(GemkitError):
    """A plugin that cannot be loaded, or contributes something it may not."""


class UnknownNameError(GemkitError):
    """A part, pruner, model or data set nobody registered."""


class OptionError(GemkitError):
    """A field that does not exist, or a value outside its bounds."""


class FitError(GemkitError):
    """Parts that do not fit together; the message lists every misfit."""


class ImportanceError(GemkitError):
    """Importance with wrong keys, wrong shapes or values that are not finite."""


class CollapseError(GemkitError):
    """A layer, or the whole network, lost every weight or every path."""


class SignalError(GemkitError):
    """A network through which no signal or gradient passes at initialization."""


class TrainingError(GemkitError):
    """Training that diverged or cannot start."""


class TicketError(GemkitError):
    """A ticket file that is damaged, foreign, or does not belong to this model."""


class CompactionError(GemkitError):
    """A network that cannot be made smaller in a way that is proved to change nothing."""


class StorageError(GemkitError):
    """A file that cannot be written or read: a full disk, a missing permission, a broken drive."""


class CheckpointError(GemkitError):
    """A checkpoint that is damaged, foreign, or does not belong to this run."""


class ModelError(GemkitError):
    """A network that cannot be built, or weights that do not fit it."""


class CheckError(GemkitError):
    """A sanity check that cannot be made, or whose control would be no fair one."""


class DataError(GemkitError):
    """A data set that is missing, damaged, or does not suit the request."""


_CLOSE = 0.65
"""Letters in common: 'gem_minor' is close to 'gem_miner' (0.89), 'adam' not to 'random' (0.6)."""

_LONGEST = 100
"""Letters of a name that are compared: a file may hold a very long one."""


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """A run that was asked to stop by a signal, and has saved its state."""

    def __init__(self, signal: int, words: str = "stopped by a signal") -> None:
        super().__init__(words)
        self.signal = signal


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x' or 'y'?"` for known names that are close, else list them all.

    Close is what differs in a few letters, or begins alike. More than a few dozen are not listed.
    """
    options, name = sorted(known), name[:_LONGEST]
    close = get_close_matches(name, options, n=3, cutoff=_CLOSE)
    begun = [option for option in options if len(name) > 1 and option.startswith(name)]
    meant = list(dict.fromkeys([*close, *begun]))[:3]
    if meant:
        return "; did you mean " + " or ".join(f"'{option}'" for option in meant) + "?"
    return "; there is " + ", ".join(options) if 0 < len(options) <= 40 else ""


def some(names: Sequence[str], most: int = 5) -> str:
    """List names for a message: the first few, and how many more there are."""
    text = ", ".join(repr(name) for name in names[:most]) or "none"
    return text if len(names) <= most else f"{text} ... and {len(names) - most} more"
