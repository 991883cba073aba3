"""The command line. Nothing here imports torch until a command needs it."""

from gemkit.cli.program import main

__all__ = ["main"]
