"""How far the processes of a ledger are, and how they are asked to stop."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import SpawnContext
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event as Flag
from signal import SIGTERM
from typing import Any, NamedTuple

import torch

from gemkit.core.errors import Stopped
from gemkit.core.events import Event
from gemkit.report.progress import Slow
from gemkit.training.loop import Listener


class Link(NamedTuple):
    """What connects a process with the one that started it."""

    lines: "SimpleQueue[str]"
    stop: Flag


_LOOK, _PATIENCE = 0.1, 2.0
"""Seconds between two looks for lines, and the longest wait for the last one."""
_LINK: list[Link] = []
"""The link of this process, if it works for a ledger."""


def begin(link: Link) -> None:
    """Start a process: it computes with one thread."""
    torch.set_num_threads(1)
    _LINK.append(link)


def measured(measure: Callable[[Any], Any], run: object) -> Any:  # noqa: ANN401 - a row
    """Measure a run, unless the process is asked to stop before."""
    _stop_if_asked()
    return measure(run)


def watched(title: str, slow: Callable[..., Slow] = Slow) -> Listener:
    """Return a listener that reports how far a run is, and stops it when it is asked to stop."""
    report = slow(lambda text: _say(f"{title}: {text}"))

    def listen(event: Event) -> None:
        _stop_if_asked()
        report(event)

    return listen


def _say(text: str) -> None:
    for link in _LINK:
        link.lines.put(text)


def _stop_if_asked() -> None:
    if any(link.stop.is_set() for link in _LINK):
        raise Stopped(SIGTERM)


@contextmanager
def link_of(context: SpawnContext, hear: Callable[[str], None]) -> Iterator[Link]:
    """Yield a link for processes; `hear` is called with their lines, in a thread."""
    link, done = Link(context.SimpleQueue(), context.Event()), threading.Event()
    thread = threading.Thread(target=partial(_listen, link.lines, hear, done), daemon=True)
    thread.start()
    try:
        yield link
    finally:
        done.set()
        thread.join(_PATIENCE)  # a process that was killed may have left half a line


def _listen(lines: "SimpleQueue[str]", hear: Callable[[str], None], done: threading.Event) -> None:
    while not done.wait(_LOOK):
        while not lines.empty():
            hear(lines.get())
