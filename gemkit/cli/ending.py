"""How the program ends: exit codes, messages of errors, and streams that cannot be written."""

import os
import select
import sys
from contextlib import suppress
from errno import EBADF, EDQUOT, EFBIG, EIO, ENOSPC
from pathlib import Path
from typing import TextIO

import click

from gemkit.core.errors import CollapseError, GemkitError, Stopped
from gemkit.plugins.faults import FAULT, fault_of

MISTAKE = 2
"""The exit code of an error that the user can do something about."""
COLLAPSE = 3
"""The exit code of a network that lost a layer, or every path: a finding, not a mistake."""
UNREAD = 141
"""The exit code when the reader of stdout is gone, as of programs that SIGPIPE ends."""
_OF_STREAMS = {EBADF, EDQUOT, EFBIG, EIO, ENOSPC}
"""Errors that printing meets; others without the name of a file are bugs, or of a network."""


def ending_of(error: Exception) -> tuple[str, int] | None:
    """Return the message and the exit code for an exception; None keeps its traceback."""
    if isinstance(error, GemkitError):
        return str(error), COLLAPSE if isinstance(error, CollapseError) else MISTAKE
    if isinstance(error, Stopped):
        return str(error), 128 + error.signal
    if isinstance(error, click.Abort):
        return "interrupted", 130
    if isinstance(error, click.UsageError):
        return _with_hint(error), error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if (fault := fault_of(error)) is not None:
        return fault, FAULT
    if isinstance(error, OSError) and (error.filename or error.errno in _OF_STREAMS):
        return _of_machine(error), MISTAKE
    return None


def _of_machine(error: OSError) -> str:
    """Describe an error of a file, or without a name, of a stream."""
    what = f"use {error.filename!r}" if error.filename else "write the answer"
    way_out = "make room" if error.errno == ENOSPC else "give another, or check its permissions"
    return f"cannot {what}: {error.strerror or error}; {way_out}"


def _with_hint(error: click.UsageError) -> str:
    """Return the message with a hint at the help."""
    if error.ctx is None:
        return error.format_message()
    return f"{error.format_message()}\nTry '{error.ctx.command_path} --help'."


def open_streams() -> None:
    """Give a closed stdin, stdout or stderr a place to write to.

    The next file would get its number otherwise, and then everything that is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)
            os.set_inheritable(number, True)
            if nowhere != number:
                os.close(nowhere)
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r+"))  # noqa: SIM115 - open to the end


def is_unread() -> bool:
    """Return whether the reader of stdout or stderr is gone."""
    streams = select.poll()
    for number in (1, 2):
        streams.register(number, 0)  # an error or a hangup is always reported
    return bool(streams.poll(0))


def flush_streams() -> OSError | None:
    """Write what is buffered; what cannot be written is dropped, and its error returned."""
    problem = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):  # the reader has seen enough
                problem = problem or error
            _drop(stream)
    return problem


def _drop(stream: TextIO) -> None:
    """Let a stream write nowhere, or Python would complain once more when it exits."""
    with suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
