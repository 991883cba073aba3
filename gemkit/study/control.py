"""The control of a check, kept with its checkpoints: fine-tuning resumes with the same one.

A control that is searched may differ on another device or with another version of a library. Its
file has the name of its ticket, and is removed with the checkpoints when the stage is done.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gemkit.core.errors import GemkitError
from gemkit.sanity.trials import check_fair
from gemkit.study.job import Job
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpoint import CheckpointDir


def kept_control(job: Job, ticket: Ticket, make: Callable[[], Ticket]) -> Ticket:
    """Return the control that fine-tuning began with; without it, make one and begin again."""
    file = job.folder.checkpoints / f"control-{ticket.digest()[:16]}.safetensors"
    known = _load(job, file, ticket) if job.first else None
    if (control := job.setup.fabric.broadcast(known)) is not None:
        return control
    control = make()
    if job.first:
        if CheckpointDir(job.folder.checkpoints).files():
            job.log.say("its control is lost or damaged, so fine-tuning starts again")
        job.folder.finish()
        job.folder.checkpoints.mkdir()
        control.save(file, within=job.store.path)
    return control


def _load(job: Job, file: Path, ticket: Ticket) -> Ticket | None:
    """Read a control, if there is one that fits its ticket."""
    with suppress(OSError, GemkitError):
        control = Ticket.load(file, within=job.store.path)
        check_fair(control, ticket)
        return control
    return None
