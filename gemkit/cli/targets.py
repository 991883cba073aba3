"""The file that a command writes at its end: where it goes, and that it can be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING

from gemkit.core.errors import OptionError, Stopped

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def beside(file: Path, suffix: str, out: Path | None, *, force: bool) -> Path:
    """Return the path for a file made from a ticket; refuse to overwrite unless forced."""
    name = f"{file.stem}-{suffix}.safetensors"
    # Of these, the functions of os.path alone take names that are too long.
    inside = out is not None and os.path.isdir(out)  # noqa: PTH112
    target = file.with_name(name) if out is None else out / name if inside else out
    _refuse_existing(target, force=force)
    if not os.path.isdir(target.parent):  # noqa: PTH112
        raise OptionError(f"there is no folder {target.parent} for {target.name}; create it first")
    return target


def _refuse_existing(target: Path, *, force: bool) -> None:
    from gemkit.runs.locks import check_target

    with suppress(OSError):  # `claimed` reports it
        check_target(target)
    if os.path.lexists(target) and not force:
        raise OptionError(f"{target} exists; overwrite it with --force, or give another --out")


@contextmanager
def claimed(target: Path, fabric: Fabric | None = None, *, force: bool) -> Iterator[None]:
    """Hold the file that a command writes at its end; refuse one that it could not write.

    Of several processes only the first one writes. A signal says whether the file is written.
    """
    from gemkit.runs import signals
    from gemkit.runs.locks import reserved
    from gemkit.runs.setup import together

    with ExitStack() as held:
        with together(fabric):
            if fabric is None or fabric.is_global_zero:
                held.enter_context(reserved(target))
                _refuse_existing(target, force=force)
        before = _status(target)
        try:
            with signals.raised():
                yield
        except Stopped as stop:
            done = "is written" if _status(target) != before else "was not written"
            words = f"stopped by {Signals(stop.signal).name}; {target} {done}"
            raise Stopped(stop.signal, words) from stop


def _status(file: Path) -> tuple[int, int] | None:
    """Return what changes when a file is replaced."""
    try:
        status = file.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
