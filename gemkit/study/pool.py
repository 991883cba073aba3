"""A pool of processes on this machine, as a `concurrent.futures.Executor`.

The standard pool breaks as a whole when one of its processes dies. Here each process has a thread
that hands it one task after the other; if it dies, its task fails, and a new process takes its
place. Processes are started as commands, so a script needs no `if __name__ == "__main__"`.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

_TAIL = 300
"""Characters of the last words of a process."""


class WorkerDiedError(Exception):
    """A process ended before its task did."""


class _Task(NamedTuple):
    future: "Future[Any]"
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class LocalPool(Executor):
    """Processes that run one task each; `environments` has the variables of each of them."""

    def __init__(self, environments: Sequence[Mapping[str, str]]) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._workers = [_Worker(one) for one in environments]
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=[worker], daemon=True)
            for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":  # noqa: ANN401
        """Run a function that can be imported in a process of the pool."""
        if self._closed:
            raise RuntimeError("the pool is closed")
        future: Future[Any] = Future()
        self._tasks.put(_Task(future, (fn, args, kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Close the pool; with `cancel_futures`, waiting tasks do not start, and others stop."""
        self._closed = True
        if cancel_futures:
            with suppress(Empty):
                while True:
                    if task := self._tasks.get_nowait():
                        task.future.cancel()
            for worker in self._workers:
                worker.stop()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads if wait else []:
            thread.join()

    def pids(self) -> list[int]:
        """Return the processes that are alive."""
        return [worker.process.pid for worker in self._workers if worker.process is not None]

    def _serve(self, worker: "_Worker") -> None:
        """Hand tasks to one process."""
        while (task := self._tasks.get()) is not None:
            if task.future.set_running_or_notify_cancel():
                try:
                    task.future.set_result(worker.run(task.call))
                except BaseException as error:
                    task.future.set_exception(error)
        worker.close()


class _Worker:
    """A process that is started when it is needed, and again when it has died."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._stopped = False

    def run(self, call: object) -> Any:  # noqa: ANN401 - whatever the function returns
        """Run a call in the process, and return or raise what it does."""
        connection = self._connection or self._start()
        try:
            connection.send_bytes(pickle.dumps(call))
            kind, value = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerDiedError(self._ended()) from error
        if kind == "error":
            raise value
        return value

    def stop(self) -> None:
        """Ask the process to stop, also one that is just being started."""
        self._stopped = True
        with suppress(OSError):
            if self.process is not None:
                self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End the process: it ends where its connection does."""
        if self._connection is not None:
            self._connection.close()
        if self.process is not None:
            self.process.wait()
        self.process = self._connection = None
        self._words.close()

    def _start(self) -> "Connection[Any, Any]":
        """Start the process, in a session of its own: Ctrl-C is for the driver to handle."""
        own, theirs = Pipe()
        self._words.truncate(0)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gemkit.study.worker", str(theirs.fileno()), str(os.getpid())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=self._words,
            stderr=self._words,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._connection = own
        if self._stopped:
            self.process.terminate()
        return own

    def _ended(self) -> str:
        """Describe how the process ended, with its last words."""
        assert self.process is not None
        self._connection = None
        code = self.process.wait()
        self.process = None
        self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, self._words.tell() - _TAIL))
        words = self._words.read().decode("utf-8", "replace").strip()
        if code == -signal.SIGKILL:
            return "its process was killed (SIGKILL), perhaps for lack of memory"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return f"its process ended {how}" + (f": {words}" if words else "")
