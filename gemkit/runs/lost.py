"""Files that a run has lost: what is missing, and the way out."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemkit.core.errors import OptionError, TicketError, some
from gemkit.core.tensor_file import InvalidFileError
from gemkit.core.text import number_of
from gemkit.runs.directory import RunDir
from gemkit.runs.metrics import last_line
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpoint import CheckpointDir


def check_config(run: RunDir) -> None:
    """Refuse a folder with a run that has lost its configuration."""
    if run.is_run() or not os.path.lexists(run.path / "environment.json"):
        return
    if run.has_result() or any(map(os.path.lexists, (run.metrics, run.log))):
        raise OptionError(
            f"{run.path} has lost config.toml; put it back, or start another run in another folder"
        )


def lost_tickets(run: RunDir, *, read: bool = False) -> str | None:
    """Say which tickets a run with a result has lost, and the way out; None if it has all.

    `read` also finds damaged ones; leave it out before a ticket is loaded anyway.
    """
    if not run.has_result():
        return None
    files = (run.ticket, run.finetuned)
    lost = [
        file.name for file in files if (_is_lost(file, run) if read else not os.path.lexists(file))
    ]
    if not lost:
        return None
    words, names = "result.json to run all of it again", " and ".join(lost)
    if os.path.lexists(run.checkpoints):  # its checks are not done
        if run.ticket.name in lost:  # fine-tuning cannot continue without it
            words = "result.json and checkpoints/ to run all of it again"
        else:
            words = "result.json to run again what came after its last checkpoint"
    are, them = ("is", "it") if len(lost) == 1 else ("are", "them")
    what = f"{names} {are} lost or damaged" if read else f"has lost {names}"
    return f"{what}; put {them} back, or remove {words}"


def check_tickets(run: RunDir) -> None:
    """Refuse a run with a result whose tickets are lost or damaged."""
    if run.result() is not None and (lost := lost_tickets(run, read=True)):
        raise OptionError(f"{run.path} is finished, but {lost}")


def lost_levels(run: RunDir, levels: Iterable[Mapping[str, Any]]) -> str | None:
    """Say which tickets of levels are lost or damaged, and the way out; None if all are sound.

    Only running again would make them again: a checkpoint has nothing of levels that are done.
    """
    files = [Path(name) for name in dict.fromkeys(level["ticket"] for level in levels)]
    lost = [file.name for file in files if _is_lost(file, run)]
    if not lost:
        return None
    made = "result.json"
    if not run.has_result():
        made = "result.json when the run is done,"
    elif os.path.lexists(run.checkpoints):  # its checks are not done
        made = "result.json and checkpoints/"
    are, them = ("is", "it") if len(lost) == 1 else ("are", "them")
    return (
        f"of {number_of(len(files), 'ticket')} in {run.ladder}, {len(lost)} {are} lost or damaged "
        f"({some(lost)}); put {them} back, or remove {made} to run all of it again"
    )


def _is_lost(file: Path, run: RunDir) -> bool:
    """Return whether a file is missing or damaged; one that cannot be read here may be sound."""
    if not os.path.lexists(file):  # or its name is none: the list is untrusted
        return True
    try:
        Ticket.load(file, within=run.path)
    except TicketError as error:
        cause = error.__cause__
        # A `TicketError` as the cause says that the content makes no ticket.
        damaged = isinstance(cause, InvalidFileError) and cause.damaged
        return damaged or isinstance(cause, TicketError)
    return False


def has_lost_checkpoints(run: RunDir) -> bool:
    """Return whether a run without a result did some work, and has no checkpoint of it."""
    if run.has_result() or CheckpointDir(run.checkpoints).files():
        return False
    return not run.has_nothing_saved() or bool(last_line(run.metrics, having="epoch"))


def load_found(run: RunDir) -> Ticket:
    """Load the ticket that fine-tuning began with."""
    if not os.path.lexists(run.ticket):
        raise TicketError(
            f"{run.ticket} does not exist, and fine-tuning began with it; put it back, or start in "
            "another folder"
        )
    return Ticket.load(run.ticket, within=run.path)
