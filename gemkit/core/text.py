"""Format numbers and untrusted text for messages."""

import re
from collections.abc import Callable
from typing import Any

from gemkit.core.limits import MAX_NAME_LENGTH

CUSTOM = "custom:"
"""The prefix of the name of a function in files."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor, change colours or the title, or reverse text."""


def number_of(count: float, noun: str, nouns: str = "") -> str:
    """Format a count: `1 epoch`, `1,200 epochs`; `nouns` is an irregular plural."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun if count == 1 else nouns or noun + 's'}"


def escaped(text: str, *, keep: str = "") -> str:
    r"""Escape control characters, except those in `keep`, as in `\x1b`.

    Use it for text from a file before it is printed to a terminal.
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def text_of(value: str | Callable[..., Any]) -> str:
    """Return a name unchanged; for a function, return where it is defined."""
    if isinstance(value, str):
        return value
    place = value if hasattr(value, "__qualname__") else type(value)
    return f"{CUSTOM}{place.__module__}.{place.__qualname__}"[:MAX_NAME_LENGTH]
