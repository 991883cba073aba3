"""A process of a `LocalPool`: `python -m gemkit.study.worker DESCRIPTOR PARENT`.

Calls arrive through a pipe that the parent holds. A thread reads them, so that the end of the pipe,
which is the end of the parent, ends this process at once, whatever it is doing.
"""

import os
import pickle
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

_LOOK = 5.0
"""Seconds between two looks at whether the parent is alive."""


def main(descriptor: int, parent: int) -> None:
    """Run calls one after the other, in the main thread, where signals arrive."""
    connection: Connection[Any, Any] = Connection(descriptor)
    calls: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=[connection, calls, parent], daemon=True).start()
    while True:
        connection.send_bytes(_answer(calls.get()))


def _listen(connection: "Connection[Any, Any]", calls: "SimpleQueue[bytes]", parent: int) -> None:
    """Read calls until the parent is gone; another process may hold its end of the pipe open."""
    while True:
        try:
            while not connection.poll(_LOOK):
                if os.getppid() != parent:
                    os._exit(0)
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
