"""Where an exception was raised: in this process, or in a worker, whose traceback is a text."""

import re
import sysconfig
import traceback
from pathlib import Path
from typing import NamedTuple

import torch

from gemkit.core.errors import describe_error

_WORKER = "in DataLoader worker process"
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_KNOWN = (Path(torch.__file__).parent, Path(__file__).parents[1])
"""Folders of libraries whose lines say nothing about a user's mistake."""
_STANDARD = Path(sysconfig.get_paths()["stdlib"])


class Place(NamedTuple):
    """A line of code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}"


def in_worker(error: BaseException) -> tuple[str, list[Place]] | None:
    """Return the reason and the lines of an exception of a data loader's worker; else None."""
    text = str(error)
    if _WORKER not in text:
        return None
    places = [Place(file, int(line), name) for file, line, name in _FRAME.findall(text)]
    return text.strip().splitlines()[-1], places


def described_with_place(error: BaseException) -> str:
    """Describe an error, with the innermost line that is not in gemkit, torch or Python itself."""
    frames = traceback.extract_tb(error.__traceback__)
    here = [Place(one.filename, one.lineno or 0, one.name) for one in frames]
    reason, places = in_worker(error) or (describe_error(error), here)
    own = [one for one in places if _is_own(Path(one.file))]
    return f"{reason}, at {own[-1]}" if own else reason


def _is_own(file: Path) -> bool:
    if any(file.is_relative_to(folder) for folder in _KNOWN):
        return False
    installed = not {"site-packages", "dist-packages"}.isdisjoint(file.parts)
    return installed or not file.is_relative_to(_STANDARD)
