"""Exceptions in plugins, reported in one message instead of a traceback.

Only the command line does this; from Python the exception is raised as it is.
"""

import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemkit.parts.part import Part

VARIABLE = "GEMKIT_TRACEBACK"
FAULT = 1
"""The exit code: an error of the plugin's author, not of the user."""


def fault_of(error: Exception) -> str | None:
    """Return which plugin's part raised an exception and where; None if no plugin is involved.

    The innermost frame of a plugin counts, even if it called another library. Return None if the
    user asked for tracebacks.
    """
    if os.environ.get(VARIABLE) or "gemkit.parts.part" not in sys.modules:
        return None
    frames = list(traceback.walk_tb(error.__traceback__))
    theirs = {_package(cls.__module__) for cls in _parts()} - {"gemkit"}
    place = next((one for one in reversed(frames) if _owner(one[0]) in theirs), None)
    if place is None:
        return None
    frame, line = place
    whose = "" if _owner(frames[-1][0]) == "gemkit" else ", which is a fault in the plugin"
    code, package = frame.f_code, _owner(frame)
    notes = [*getattr(error, "__notes__", []), f"{VARIABLE}=1 shows the whole traceback."]
    return "\n".join(
        [
            f"{_whose((one for one, _ in frames), package)} failed{whose}: "
            f"{type(error).__name__}: {error}",
            f"  at {Path(code.co_filename)}:{line}, in {code.co_name}",
            *notes,
        ]
    )


def _whose(frames: Iterable[FrameType], package: str) -> str:
    """Return the name of the part that was called, if there is one, and its plugin."""
    from gemkit.parts.part import Part
    from gemkit.plugins.registry import KINDS

    plugin = ", ".join(packages_distributions().get(package, [])) or "given as a file"
    selves = [frame.f_locals.get("self") for frame in frames]
    own = [one for one in selves if isinstance(one, Part) and _of(one) == package]
    if not own:
        return f"a plugin ({plugin})"
    kinds = [kind.label for kind in KINDS.values() if isinstance(own[-1], kind.base)]
    return f"{' '.join(kinds)} '{own[-1].name}' (plugin {plugin})"


def _parts(*above: "type[Part]") -> "Iterator[type[Part]]":
    """Yield every class of parts."""
    from gemkit.parts.part import Part

    for cls in above or (Part,):
        yield cls
        if below := cls.__subclasses__():
            yield from _parts(*below)


def _of(part: "Part") -> str:
    return _package(type(part).__module__)


def _owner(frame: FrameType) -> str:
    return _package(str(frame.f_globals.get("__name__", "")))


def _package(module: str) -> str:
    return module.partition(".")[0]
