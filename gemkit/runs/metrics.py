"""The metrics and the log of a run."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gemkit.core.atomic_io import named, open_plain
from gemkit.core.errors import CheckpointError, GemkitError, Stopped, StorageError
from gemkit.core.events import Collapsed, EpochEnded, Event, Froze, Noted, PhaseStarted
from gemkit.core.state import StateDict, checked_count
from gemkit.core.text import escaped, number_of

_TAIL, _FURTHEST = 1 << 16, 1 << 24
"""Bytes at the end of a file to look for a line in: at first, and at most."""
_MOST_BYTES = 1 << 28
"""Of a file whose length alone is known."""
_NAMES = {EpochEnded: "epoch", Froze: "freeze", Collapsed: "collapse"}


class Metrics:
    """Write one JSON line for each epoch, freeze, collapse and error, as they happen.

    A resumed run removes the lines after its checkpoint, so no line is there twice. A checkpoint
    has all lines: a file that was lost, cut or changed is restored from it, with a warning.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda sentence: None) -> None:
        self.path = path
        self.warn = warn
        self._file = open_plain(path, "a+b", within=path.parent)
        self._lines = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError), self._file:  # a full disk must not hide what went wrong
            if isinstance(error, Exception) and not isinstance(error, Stopped):
                expected = isinstance(error, GemkitError)
                message = str(error) if expected else f"{type(error).__name__}: {error}"
                self._write("error", {"message": message})

    def __call__(self, event: Event) -> None:
        """Write an event that belongs into the metrics."""
        if type(event) in _NAMES:
            self._write(_NAMES[type(event)], _fields(event))

    def state_dict(self) -> StateDict:
        """Flush the file to disk, and return its lines and their length."""
        with named(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
        self.check_there()
        lines = torch.from_numpy(np.array(self._lines, dtype=np.uint8))
        return {"offset": len(self._lines), "lines": lines}

    def check_there(self) -> None:
        """Raise if the file was removed, as it is with the folder of the run."""
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise StorageError(f"{self.path} was removed while the run wrote it; start it again")

    def clear(self) -> None:
        """Remove all lines."""
        self._file.truncate(0)
        self._lines.clear()

    def load_state_dict(self, state: StateDict) -> None:
        """Cut the file to the lines in a state, or write them again if the file has others."""
        offset = checked_count(state, "offset")
        saved = saved_lines(state) if "lines" in state else None
        self._file.seek(0)
        found = self._file.read(offset if saved is not None else min(offset, _MOST_BYTES))
        if saved is None and len(found) < offset:  # an older checkpoint has the length alone
            self.warn(
                f"{self.path} is shorter than it was when the run was saved: the metrics until "
                "then are lost, and curves begin later; ticket, weights and result are not affected"
            )
            found = b""
        elif saved is not None and found != saved:
            self.warn(
                f"{self.path} was lost or changed after the run was saved; it is restored from the "
                "checkpoint"
            )
            self._file.truncate(0)
            self._append(saved)
            found = saved
        self._file.truncate(len(found))
        self._lines = bytearray(found)

    def _write(self, event: str, fields: Mapping[str, Any]) -> None:
        line = json.dumps({"event": event, **fields}, allow_nan=False).encode() + b"\n"
        self._append(line)
        self._lines += line

    def _append(self, lines: bytes) -> None:
        with named(self.path):
            self._file.write(lines)
            self._file.flush()


def saved_lines(state: StateDict) -> bytes:
    """Return the lines that a state of `Metrics` holds, which may have been forged."""
    saved, length = state["lines"], checked_count(state, "offset")
    if not isinstance(saved, Tensor) or (saved.dtype, [*saved.shape]) != (torch.uint8, [length]):
        raise CheckpointError(f"'lines' are not {length} bytes")
    return bytes(saved.numpy().tobytes())


def _fields(event: Event) -> dict[str, Any]:
    """Return the fields of an event; accuracy has a name of its own."""
    fields = asdict(event)
    if isinstance(event, EpochEnded) and event.metric == "accuracy":
        renamed = {"accuracy" if key == "value" else key: fields[key] for key in fields}
        return {key: renamed[key] for key in renamed if key not in ("metric", "higher_is_better")}
    return fields


def last_line(path: Path, having: str = "event") -> Mapping[str, Any]:
    """Return the last complete line that has this field, or an empty one.

    It is looked for from the end, ever further back, up to a bound: the file is untrusted.
    """
    within, reach = path.parent, _TAIL
    with suppress(OSError, ValueError, RecursionError), open_plain(path, within=within) as file:
        size = os.fstat(file.fileno()).st_size
        while reach <= _FURTHEST:
            file.seek(max(0, size - reach))
            lines = file.read(min(size, reach)).splitlines(keepends=True)
            for line in reversed(lines if size <= reach else lines[1:]):  # the first may be cut
                data = json.loads(line) if line.endswith(b"\n") else None
                if isinstance(data, dict) and having in data:
                    return data
            if size <= reach:
                break
            reach *= 16
    return {}


class Log:
    """Write a line with the time for everything that happens; the file only grows."""

    def __init__(self, path: Path, now: Callable[[], datetime] = datetime.now) -> None:
        self.path = path
        self._now = now
        self._epochs = 0

    def say(self, words: str) -> None:
        """Append a line; a disk error is ignored, since the run matters more than its log."""
        line = f"{self._now():%Y-%m-%d %H:%M:%S}  {escaped(words, keep=chr(10))}\n"
        with suppress(OSError), open_plain(self.path, "ab", within=self.path.parent) as file:
            file.write(line.encode("utf-8", "replace"))

    def __call__(self, event: Event) -> None:
        """Append a line for an event, except for steps."""
        if isinstance(event, PhaseStarted):
            self._epochs = event.epochs
            epochs, steps = number_of(event.epochs, "epoch"), number_of(event.steps, "step")
            self.say(f"{event.phase}: {epochs}, {steps} in all")
        elif isinstance(event, EpochEnded):
            self.say(
                f"{event.phase} {event.epoch}/{self._epochs}: loss {event.loss:.4f}, "
                f"{event.metric} {event.value:.4f}, density {event.density:.4f}, lr {event.lr:.3g}"
            )
        elif isinstance(event, Froze):
            self.say(f"freeze at step {event.step}: {event.alive:,} of {event.prunable:,} alive")
        elif isinstance(event, Collapsed | Noted):
            self.say(f"warning: {event.message}")
