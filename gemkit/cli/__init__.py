"""The command line. A command imports torch when it runs, not for `--help`."""

from gemkit.cli.program import main

__all__ = ["main"]
