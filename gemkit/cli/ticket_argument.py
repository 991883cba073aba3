"""TICKET, what many commands work on: a ticket file, or the run that has one."""

import os
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gemkit.cli.screen import echo
from gemkit.cli.sections import Decorator, Function
from gemkit.errors import TicketError

if TYPE_CHECKING:
    from gemkit.ticket import Ticket

FOUND = "ticket.safetensors"
TRAINED = "finetuned.safetensors"


class TicketPath(NamedTuple):
    """Where a ticket file is, and the folder it was found in if only that was typed.

    A user may type the name of a link; a file that is found in a folder may be none.
    """

    path: Path
    folder: Path | None = None

    def load(self) -> "Ticket":
        """Read the ticket."""
        from gemkit.ticket import Ticket

        return Ticket.load(self.path, within=self.folder)

    def __str__(self) -> str:
        return str(self.path)


def ticket_argument(*names: str) -> Decorator:
    """Define TICKET; of a run's folder the command gets the first of these files that is there."""

    def decorate(command: Function) -> Function:
        @click.argument("file", metavar="TICKET|RUN", type=click.Path(path_type=Path))
        @wraps(command)
        def with_file(*, file: Path, **values: Any) -> Any:  # noqa: ANN401
            taken = ticket_in(file, *names)
            if taken.folder:
                echo(f"note: taking {taken}", err=True)
            return command(file=taken, **values)

        return with_file

    return decorate


def ticket_in(path: Path, *names: str) -> TicketPath:
    """Return the first of these files in a folder; whatever is no folder is a file itself."""
    other = "give a ticket file, or the folder of a run; `gemkit runs` lists runs"
    try:
        there = path.exists()
    except OSError as error:
        raise TicketError(f"{path} cannot be looked at: {error.strerror}; {other}") from error
    if not there:
        raise TicketError(f"{path} does not exist; {other}")
    if not path.is_dir():
        return TicketPath(path)
    for name in names:
        if os.path.lexists(path / name):
            return TicketPath(path / name, path)
    raise TicketError(f"{path} is a folder without {' or '.join(names)}; {_way_out(path) or other}")


def _way_out(path: Path) -> str | None:
    """Say how to come by the ticket of a run that has none yet; None if this is no run."""
    from gemkit.rundir import RunDir

    run = RunDir(path)
    if not run.is_run():
        return None
    if run.state() == "failed":
        return (
            f"its search failed, as {run.log} tells; `gemkit resume {path}` tries again from what "
            "is saved, or start another"
        )
    return f"its search is not done: `gemkit resume {path}` goes on with it"
