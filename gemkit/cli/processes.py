"""Several processes that share one run: the first one speaks for all."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from lightning_fabric import Fabric

from gemkit.errors import GemkitError, Stopped


@contextmanager
def only_first_speaks(fabric: Fabric) -> Iterator[Path | None]:
    """Silence all processes of a run but the first, and give them a place to lose their files in.

    Every process does the same work; this keeps them from doing it on the same files and screen.
    """
    if fabric.is_global_zero:
        yield None
        return
    with (
        tempfile.TemporaryDirectory() as nowhere,
        Path(os.devnull).open("w") as nobody,
        redirect_stdout(nobody),
        redirect_stderr(nobody),
    ):
        try:
            yield Path(nowhere)
        except (GemkitError, Stopped):
            sys.exit(2)  # the first process says why
        sys.exit(0)  # the first process answers
