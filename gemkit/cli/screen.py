"""Text on the terminal. Part of it may come out of a file, so control characters are escaped."""

import click

from gemkit.wording import escaped

_LONGEST = 20_000
"""Letters of one message on stderr."""


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text; a message on stderr is cut off where it gets too long to read."""
    if err and len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} … and {len(text) - _LONGEST:,} characters more"
    click.echo(escaped(text, keep="\n\t"), err=err, nl=nl)
