"""Exceptions in plugins, reported in one message instead of a traceback.

The command line and the workers of studies do this; from Python the exception is raised as it is,
but for SystemExit in a run, which would end the program without a word.
"""

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemkit.parts.part import Part

VARIABLE = "GEMKIT_TRACEBACK"
FAULT = 1
"""The exit code: an error of the plugin's author, not of the user."""
_OURS = {"gemkit", "click"}
"""Packages that may end the program."""


class ExitedError(RuntimeError):
    """Code that is not gemkit's raised SystemExit, which would end the program without a word."""


@contextmanager
def exits_are_faults() -> Iterator[None]:
    """Raise `ExitedError` for a SystemExit of a plugin, a network or a data set of the user."""
    try:
        yield
    except SystemExit as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if _owner(frames[-1]) in _OURS or not any(_is_theirs(frame) for frame in frames):
            raise
        words = f"SystemExit: {error.code}"
        raise ExitedError(words).with_traceback(error.__traceback__) from error


def fault_of(error: Exception) -> str | None:
    """Return which plugin's part raised an exception and where; None if no plugin is involved.

    The innermost frame of a plugin counts, even if it called another library. Return None if the
    user asked for tracebacks.
    """
    if os.environ.get(VARIABLE) or "gemkit.parts.part" not in sys.modules:
        return None
    if (fault := _fault_of_worker(error) or _fault(error)) is None:
        return None
    notes = getattr(error, "__notes__", [])
    return "\n".join([*fault, *notes, f"{VARIABLE}=1 shows the whole traceback."])


def _fault(error: Exception) -> list[str] | None:
    """Describe a fault, and the place of it, by the frames of this process."""
    frames, theirs = list(traceback.walk_tb(error.__traceback__)), _plugins()
    place = next((one for one in reversed(frames) if _owner(one[0]) in theirs), None)
    exited = isinstance(error, ExitedError)
    if place is None and exited:
        place = next((one for one in reversed(frames) if _is_theirs(one[0])), None)
    if place is None:
        return None
    frame, line = place
    whose = "" if _owner(frames[-1][0]) == "gemkit" else ", which is a fault in the plugin"
    code, package = frame.f_code, _owner(frame)
    who = _whose((one for one, _ in frames), package) if package in theirs else "your code"
    reason = str(error) if exited else f"{type(error).__name__}: {error}"
    return [
        f"{who} failed{whose if package in theirs else ''}: {reason}",
        f"  at {Path(code.co_filename)}:{line}, in {code.co_name}",
    ]


def _fault_of_worker(error: Exception) -> list[str] | None:
    """Describe a fault in a worker of a data loader, whose traceback arrives as text."""
    from gemkit.core.raised import in_worker

    reason, places = in_worker(error) or ("", [])
    files = {file: name for name in _plugins() if (file := _file_of(name))}
    for place in reversed(places):
        for own, name in files.items():
            if Path(place.file).is_relative_to(own):
                return [
                    f"{_whose((), name)} failed, which is a fault in the plugin: {reason}",
                    f"  at {place}, in a worker of a data loader",
                ]
    return None


def _plugins() -> set[str]:
    """Return the packages of all parts that are not gemkit's own."""
    return {_package(cls.__module__) for cls in _parts()} - {"gemkit"}


def _file_of(package: str) -> Path | None:
    """Return the file of a module, or the folder of a package."""
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is None:
        return None
    return Path(file).parent if Path(file).name == "__init__.py" else Path(file)


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


def _is_theirs(frame: FrameType) -> bool:
    """Return whether a frame is of a plugin, or of a file that is part of no library."""
    if (package := _owner(frame)) in _OURS:
        return False
    file = Path(frame.f_code.co_filename)
    library = not file.is_absolute() or file.is_relative_to(sysconfig.get_paths()["stdlib"])
    library = library or not {"site-packages", "dist-packages"}.isdisjoint(file.parts)
    return package in _plugins() or not library
