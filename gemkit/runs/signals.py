"""Signals: how a run hears that it should stop."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from gemkit.errors import Stopped

_HEARD = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], None]


class Ear:
    """Remembers the first signal and reports it; a second one ends the process at once."""

    def __init__(self, stopping: Callable[[], None]) -> None:
        self.heard: int | None = None
        self.stopping = stopping

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note the signal, restore its default effect, and report it."""
        self.heard = number
        for one in _HEARD:
            signal.signal(one, signal.SIG_DFL)
        self.stopping()

    def asked_to_stop(self) -> int | None:
        """Return the signal, if there was one."""
        return self.heard


@contextmanager
def noticed(stopping: Callable[[], None] = lambda: None) -> Iterator[Ear]:
    """Let signals be noticed rather than end the process; `stopping` is called at the first."""
    ear = Ear(stopping)
    with _handled(ear):
        yield ear


@contextmanager
def raised() -> Iterator[None]:
    """Let signals raise `Stopped` where they arrive, for work that is whole at every moment."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handled(stop):
        yield


@contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    """Handle signals, where this thread may, and bring back what handled them before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, handler) for one in _HEARD}
    try:
        yield
    finally:
        for one, handled in before.items():
            signal.signal(one, handled)
