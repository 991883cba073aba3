"""The processes that share a run: copies of this command, which watch each other.

A process that is killed leaves the others waiting for it. They end, and the first one says why.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

_LOOK = 0.2
"""Seconds between two looks at the others."""
_GRACE = 5.0
"""Seconds in which a process may end by itself when another was killed, or the first is gone."""
_OWN_ERROR = 60.0
"""The same, when another ended with an error, which all of them have as a rule."""
_PARENT = "GEMKIT_FIRST_PROCESS"
_CLOSED = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")

_children: list[subprocess.Popen[bytes]] = []
_last_words: list[Callable[[], str]] = []


def start(count: int) -> None:
    """Start this command again for each of the other processes, and watch them.

    The environment then describes all of them as torchrun would.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    os.environ |= {"LOCAL_RANK": "0", "WORLD_SIZE": str(count)}
    for rank in range(1, count):
        own = {**os.environ, "LOCAL_RANK": str(rank), _PARENT: str(os.getpid())}
        _children.append(subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=own))
    threading.Thread(target=_watch, daemon=True).start()


def watch_first() -> None:
    """End this process if the one that started it is gone, in processes that `start` made."""
    if parent := os.environ.pop(_PARENT, None):  # it is not the parent of our own children
        threading.Thread(target=_watch_first, args=[int(parent)], daemon=True).start()


def is_loss(error: BaseException) -> bool:
    """Return whether an exception says that another process is gone."""
    if not isinstance(error, RuntimeError):
        return False
    return isinstance(error, torch.distributed.DistError) or any(
        words in str(error) for words in _CLOSED
    )


def loss_text() -> str:
    """Say which process ended, and how, as far as this one knows."""
    end = time.monotonic() + 1.0  # the connection may close before the process has ended
    while _children and (found := _lost()) is None and time.monotonic() < end:
        time.sleep(_LOOK)
    return "another process of this run ended" if not _children or found is None else found[0]


@contextmanager
def if_lost(words: Callable[[], str]) -> Iterator[None]:
    """Let the message about a lost process end with these words, inside the block."""
    _last_words.append(words)
    try:
        yield
    finally:
        _last_words.pop()


def _lost() -> tuple[str, float] | None:
    """Describe the first process that did not end well, and return how long to wait then."""
    for rank, child in enumerate(_children, start=1):
        if code := child.poll():
            name = signal.Signals(-code).name if code < 0 else ""
            how = f"was killed by {name}" if name else f"ended with code {code}"
            return f"process {rank} of this run {how}", _GRACE if name else _OWN_ERROR
    return None


def _watch() -> None:
    """Wait for a process that does not end well, and end this one if it does not notice."""
    while (found := _lost()) is None:
        if all(child.returncode == 0 for child in _children):
            return
        time.sleep(_LOOK)
    what, patience = found
    time.sleep(patience)
    for child in _children:
        with suppress(OSError):
            child.kill()
    words = [what, *(say() for say in _last_words[-1:])]
    with suppress(OSError):
        os.write(2, f"gemkit: {'; '.join(words)}\n".encode())
    os._exit(2)


def _watch_first(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    time.sleep(_GRACE)
    os._exit(2)
