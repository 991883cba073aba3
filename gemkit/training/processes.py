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

from gemkit.core.errors import GemkitError, StorageError, TooLittleMemoryError

_LOOK = 0.2
"""Seconds between two looks at the others."""
_GRACE = 5.0
"""Seconds in which a process may end by itself when another was killed, or the first is gone."""
_OWN_ERROR = 60.0
"""The same, when another ended with an error, which all of them have as a rule."""
FIRST_PROCESS = "GEMKIT_FIRST_PROCESS"
"""The variable with the id of the process that started this one."""
_OWN = (TooLittleMemoryError, StorageError)
"""Errors that one process may have alone."""
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
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(count)}
    for place in map(str, range(1, count)):
        own = {**os.environ, "RANK": place, "LOCAL_RANK": place, FIRST_PROCESS: str(os.getpid())}
        _children.append(subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=own))
    threading.Thread(target=_watch, daemon=True).start()


def rank() -> int:
    """Return the number of this process among those of its run; the first, or only one, is 0."""
    torch = sys.modules.get("torch")  # without torch, nothing has joined processes
    if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    texts = (os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK"))
    return next((int(text) for text in texts if text.isdecimal()), 0)


def report_own(error: GemkitError) -> None:
    """Write an error that only this process may have; the first one writes all others.

    Its further lines are about the folder of this process, which is temporary.
    """
    if isinstance(error, _OWN):
        report(str(error).partition("\n")[0])


def report(words: str) -> None:
    """Write what happened in this process."""
    _write(f"process {rank()}: {words}")


def watch_first() -> None:
    """End this process if the one that started it is gone, in processes that `start` made."""
    if parent := os.environ.pop(FIRST_PROCESS, None):  # it is not the parent of our own children
        end_with(int(parent), _GRACE)


def end_with(parent: int, grace: float = 0.0) -> None:
    """End this process so many seconds after its parent, from now on."""
    threading.Thread(target=_end_with, args=[parent, grace], daemon=True).start()


def is_loss(error: BaseException) -> bool:
    """Return whether an exception says that another process is gone."""
    if not isinstance(error, RuntimeError):
        return False
    import torch

    lost = getattr(torch.distributed, "DistError", ())  # some builds have no distributed
    return isinstance(error, lost) or any(words in str(error) for words in _CLOSED)


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
    for place, child in enumerate(_children, start=1):
        if code := child.poll():
            how = f"was killed by {_name(-code)}" if code < 0 else f"ended with code {code}"
            return f"process {place} of this run {how}", _GRACE if code < 0 else _OWN_ERROR
    return None


def _name(number: int) -> str:
    """Return the name of a signal; most real-time signals have none."""
    names = {one.value: one.name for one in signal.Signals}
    return names.get(number, f"signal {number}")


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
    words = filter(None, [what, *(say() for say in _last_words[-1:])])
    _write("; ".join(words))
    os._exit(2)


def _end_with(parent: int, grace: float) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    time.sleep(grace)
    os._exit(2)


def _write(message: str) -> None:
    """Write to the descriptor of stderr: another thread may be printing, or stderr replaced."""
    with suppress(OSError):
        os.write(2, f"gemkit: {message}\n".encode(errors="replace"))
