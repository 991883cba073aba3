"""A process of a `LocalPool`: `python -m gemkit.study.worker DESCRIPTOR PARENT`.

Calls arrive through a pipe that the parent holds. A thread reads them, so that the end of the pipe,
which is the end of the parent, ends this process at once, whatever it is doing. Another process may
hold the pipe open, so the parent is watched too.
"""

import os
import pickle
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from gemkit.training.processes import end_with


def main(descriptor: int, parent: int) -> None:
    """Run calls one after the other, in the main thread, where signals arrive."""
    connection: Connection[Any, Any] = Connection(descriptor)
    calls: SimpleQueue[bytes] = SimpleQueue()
    end_with(parent)
    threading.Thread(target=_listen, args=[connection, calls], daemon=True).start()
    while True:
        connection.send_bytes(_answer(calls.get()))


def _listen(connection: "Connection[Any, Any]", calls: "SimpleQueue[bytes]") -> None:
    """Read calls until the pipe ends."""
    while True:
        try:
            calls.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


def _answer(call: bytes) -> bytes:
    """Run a call, and return its value or its error."""
    try:
        function, args, kwargs = pickle.loads(call)
        return pickle.dumps(("value", function(*args, **kwargs)))
    except Exception as error:
        return pickle.dumps(("error", RuntimeError(f"{type(error).__name__}: {error}")))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
