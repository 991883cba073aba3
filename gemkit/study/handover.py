"""Hand the levels of a search over to another, in workers; `gemkit.study.levels` says to which."""

from collections.abc import Callable, Sequence

from gemkit.core.atomic_io import read, write_atomic
from gemkit.core.errors import CheckpointError, StorageError
from gemkit.core.limits import max_file_bytes
from gemkit.core.state import checked_count
from gemkit.runs.directory import RunDir
from gemkit.study.tracks import collapse_in
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpoint import CheckpointDir
from gemkit.training.checkpointer import DiskCheckpointer

_FOLDER = "levels"


def start_from(folder: RunDir, key: str, former: RunDir, levels: Sequence[float]) -> bool:
    """Start a search from the levels of a former one, if it has saved them; return whether it has.

    Its metrics come with them, cut where that state was saved.
    """
    if CheckpointDir(folder.checkpoints).files():
        return False
    try:
        saved, _ = CheckpointDir(former.path / _FOLDER).newest()
        if saved is None:
            return False
        passed = [record["target"] for record in saved.state["freezer"]["history"]]
        offset = checked_count(saved.state["metrics"], "offset")
        lines = read(former.metrics, max_file_bytes(), within=former.path)[:offset]
    except (OSError, StorageError, CheckpointError, KeyError, TypeError):
        return False  # it is searched from the beginning instead
    if passed != list(levels[: len(passed)]) or len(lines) < offset:
        return False
    write_atomic(lines, folder.metrics, within=folder.path)
    CheckpointDir(folder.checkpoints).add(saved._replace(run=key))
    return True


def keeper(
    folder: RunDir, levels: Sequence[float], checkpointer: DiskCheckpointer
) -> Callable[[Ticket], None]:
    """Return what a search calls with the ticket of every level: it saves after the last of these.

    A collapse is reported once in a search, and what continues from here would not know of it.
    """

    def keep(ticket: Ticket) -> None:
        if len(ticket.info.history) == len(levels) > 0 and collapse_in(folder.metrics) is None:
            checkpointer.copy_to(folder.path / _FOLDER)

    return keep
