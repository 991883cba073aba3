"""Python warnings that point at the user's own code."""

import sys
import warnings
from typing import Any

from gemkit.core.errors import GemkitWarning
from gemkit.core.text import escaped


def warn_user(message: str) -> None:
    """Issue a warning at the line of the caller's own code that called gemkit."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_gemkit(frame.f_globals):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(escaped(message, keep="\n"), GemkitWarning, stacklevel=depth)


def _is_gemkit(names: dict[str, Any]) -> bool:
    """Whether these are the globals of a gemkit module, or of contextlib, which decorates some.

    Executed code may have no name.
    """
    return str(names.get("__name__", "")).startswith(("gemkit.", "contextlib"))
