"""Signals: how a run is asked to stop."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from gemkit.core.errors import Stopped

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], None]
Former = Handler | int
"""A handler, or one of the numbers for ignoring a signal and for its default effect."""


class StopRequest:
    """Record the first signal and report it; a second one has its former effect."""

    def __init__(self, stopping: Callable[[], None], former: Mapping[int, Former]) -> None:
        self.signal: int | None = None
        self.stopping = stopping
        self.former = former

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Record the signal, restore the former handlers, and report it."""
        self.signal = number
        _install(self.former)
        _ignore_hangup(signal.SIG_DFL)
        self.stopping()

    def requested(self) -> int | None:
        """Return the signal, if there was one."""
        return self.signal


@contextmanager
def deferred(stopping: Callable[[], None] = lambda: None) -> Iterator[StopRequest]:
    """Record signals instead of ending the process; `stopping` is called at the first."""
    request = StopRequest(stopping, _former())
    with _handled(request):
        yield request


@contextmanager
def raised() -> Iterator[None]:
    """Raise `Stopped` where a signal arrives, for work that is complete at every moment."""

    def stop(number: int, frame: FrameType | None) -> None:
        _ignore_hangup(stop)
        raise Stopped(number)

    with _handled(stop):
        yield


@contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    """Install a signal handler where a former one can be restored, and restore that."""
    former = _former()
    try:
        _install(dict.fromkeys(former, handler))
        yield
    finally:
        _install(former)


def end_at_once() -> None:
    """Let the next signal end the process, and lines for a terminal that was closed go nowhere."""
    _install(dict.fromkeys(_former(), signal.SIG_DFL))
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)


def _ignore_hangup(handler: Former) -> None:
    """Ignore SIGHUP if this is its handler: the shell and the system send it after another signal.

    A handler of the caller is another one, and stays.
    """
    if signal.getsignal(signal.SIGHUP) == handler:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _former() -> dict[int, Former]:
    """Return the handlers to replace: none outside the main thread, none that Python cannot set.

    A SIGHUP that is ignored, as `nohup` does, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    known = {int(one): signal.getsignal(one) for one in _HANDLED}
    if known[signal.SIGHUP] == signal.SIG_IGN:
        del known[signal.SIGHUP]
    return {one: handler for one, handler in known.items() if handler is not None}


def _install(handlers: Mapping[int, Former]) -> None:
    for one, handler in handlers.items():
        signal.signal(one, handler)
