"""A `gemkit run` whose writes fail, one after the other: what is lost?

Every place where a run writes is counted once: files that are opened for writing, written to,
synced, renamed, cut or removed, and folders that are made. Then a run fails at the first of them,
the next at the second, and so on.
"""

import errno
import io
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from benchmarks.killing import left_behind, options, started

Fault = Literal["disk full", "no permission", "folder deleted"]
FAULTS: tuple[Fault, ...] = ("disk full", "no permission", "folder deleted")
_CODES = {"disk full": errno.ENOSPC, "no permission": errno.EACCES}
_EVENTS = ("os.rename", "os.mkdir", "os.truncate", "os.remove")
CASES = {
    "gem_miner": ("--epochs", "2", "-o", "schedule.every=1", "--finetune-epochs", "1"),
    "snip": ("--finetune-epochs", "1", "--check", "shuffle", "--checkpoint-minutes", "1"),
}
"""A run that saves every step, and one with a check."""


class Outcome(NamedTuple):
    """How many writes there are, how many failed, how runs ended, and what went wrong."""

    writes: int
    failed: int
    endings: dict[str, int]
    problems: list[str]


class _Points:
    """The places where a run writes, in their order: count them, or let one fail.

    From that one on everything that takes room fails; other writes work again.
    """

    def __init__(self, number: int, fault: Fault | None, run: Path, report: Path) -> None:
        self.number, self.fault, self.run = number, fault, run
        self.count, self.failed = 0, False
        self.counted = os.open(report, os.O_WRONLY | os.O_CREAT)

    def reach(self, *, grows: bool) -> None:
        """Pass the next one."""
        self.count += 1
        if self.fault is None:
            os.write(self.counted, b".")
        elif self.fault == "folder deleted":
            if self.count == self.number:
                shutil.rmtree(self.run, ignore_errors=True)
        elif self.count >= self.number and (grows or not self.failed):
            self.failed = True
            raise OSError(_CODES[self.fault], os.strerror(_CODES[self.fault]))

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Look at what Python reports before it does it."""
        if event == "open" and isinstance(arguments[2], int):
            path, flags = str(arguments[0]), arguments[2]
            if flags & (os.O_WRONLY | os.O_RDWR) and not path.startswith(("/dev", "/proc")):
                self.reach(grows=True)
        elif event in _EVENTS:
            self.reach(grows=event in ("os.rename", "os.mkdir"))


class _Counted:
    """A file whose writes are points; Python reports none of them."""

    points: ClassVar[_Points]

    def write(self, data: Any) -> int:  # noqa: ANN401 - bytes
        """Write, unless this one fails."""
        self.points.reach(grows=True)
        return int(super().write(data))  # type: ignore[misc] # of the file that it is mixed into


class _Writer(_Counted, io.BufferedWriter):
    pass


class _Random(_Counted, io.BufferedRandom):
    pass


_FILES: dict[type, type] = {io.BufferedWriter: _Writer, io.BufferedRandom: _Random}


def failing(number: int, fault: Fault | None, run: Path, report: Path) -> None:
    """Let the write of this number and all later ones fail; without a fault, count them."""
    from gemkit.core import atomic_io

    points = _Counted.points = _Points(number, fault, run, report)

    def opened(path: Any, mode: str = "r", **more: Any) -> Any:  # noqa: ANN401 - as open
        file = open(path, mode, **more)  # noqa: PTH123, SIM115 - the caller closes it
        kind = _FILES.get(type(file))
        return file if kind is None else kind(file.detach())

    def synced(handle: int) -> None:
        points.reach(grows=True)
        sync(handle)

    sys.dont_write_bytecode = True
    sync, os.fsync = os.fsync, synced
    atomic_io.open = opened  # type: ignore[attr-defined] # shadows the built-in one there
    sys.addaudithook(points.audit)


def faults(place: Path, pruner: str, step: int = 1) -> Outcome:
    """Fail every `step`-th write of a run in every way, run it again, and compare."""
    words = options(pruner, CASES[pruner])
    straight, report = place / "straight", place / "count"
    whole = _run(straight, words, partial(failing, 0, None, straight / "run", report))
    expected = left_behind(straight)
    if whole != 0:
        return Outcome(0, 0, {}, [(straight / "output").read_text()])
    writes, endings, problems, failed = report.stat().st_size, dict[str, int](), list[str](), 0
    for fault in FAULTS:
        for number in range(1, writes + 1, step):
            folder = place / "failing"
            prepare = partial(failing, number, fault, folder / "run", report)
            code = _run(folder, words, prepare)
            failed += 1
            name = f"{fault}, exit code {code}"
            endings[name] = endings.get(name, 0) + 1
            problem = _problem(folder, words, code, expected, fault)
            if problem:
                problems.append(f"{pruner}, {fault} at write {number} of {writes}: {problem}")
            shutil.rmtree(folder)
    return Outcome(writes, failed, endings, problems)


def _problem(
    folder: Path,
    words: tuple[str, ...],
    code: int | None,
    expected: dict[str, object],
    fault: Fault,
) -> str:
    """Return what is wrong after a failed run and a second one, or nothing.

    A folder that was deleted may hold what was written after that; a second run refuses it.
    """
    output = (folder / "output").read_text()
    if "Traceback" in output:
        return f"a traceback\n{output}"
    if code == 0 and left_behind(folder) != expected:
        return f"results were lost, with exit code 0\n{output}"
    if code not in (0, 1, 2):
        return f"exit code {code}\n{output}"
    if fault == "folder deleted" and code != 0:
        shutil.rmtree(folder / "run", ignore_errors=True)
    if _run(folder, words, None) != 0:
        return f"it cannot be continued\n{(folder / 'output').read_text()}"
    if left_behind(folder) != expected:
        return "continued, it ends with other files"
    return ""


def _run(folder: Path, words: tuple[str, ...], prepare: Callable[[], None] | None) -> int | None:
    process = started(folder, words, prepare)
    process.join(300)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode
