"""Numbers and foreign text in sentences."""

import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor, changes its colours or title, or reverses the text after it."""


def number_of(count: float, noun: str, nouns: str = "") -> str:
    """Say how many there are: `1 epoch`, `1,200 epochs`; `nouns` is a plural that takes no s."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun if count == 1 else nouns or noun + 's'}"


def escaped(text: str, *, keep: str = "") -> str:
    r"""Write control characters as `\x1b` and the like, except those in `keep`.

    Use it for text that comes out of a file, before it reaches a terminal.
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)
