"""Hand the levels of a search over to another, in workers; `gemkit.study.levels` says to which."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress

from gemkit.core.atomic_io import open_folder, write_atomic
from gemkit.core.errors import CheckpointError, StorageError
from gemkit.runs.directory import RunDir
from gemkit.runs.metrics import saved_lines
from gemkit.study.tracks import collapse_in
from gemkit.tickets.ticket import Ticket
from gemkit.training.checkpoint import CheckpointDir
from gemkit.training.checkpointer import DiskCheckpointer

_FOLDER = "levels"


def start_from(folder: RunDir, key: str, former: RunDir | None, levels: Sequence[float]) -> bool:
    """Start a search from the levels of a former one, if it has saved them; return whether it has.

    Its metrics until then come with them. A search that starts forgets the levels that an earlier
    one saved here, perhaps with another default: it may save none itself.
    """
    if CheckpointDir(folder.checkpoints).files():
        return False
    with suppress(FileNotFoundError), open_folder(folder.path) as inside:
        shutil.rmtree(_FOLDER, dir_fd=inside)
    if former is None:
        return False
    try:
        saved, _ = CheckpointDir(former.path / _FOLDER).newest()
        if saved is None or (f"search-{saved.run}", saved.phase) != (former.path.name, "search"):
            return False
        passed = [record["target"] for record in saved.state["freezer"]["history"]]
        lines = saved_lines(saved.state["metrics"])
    except (OSError, StorageError, CheckpointError, KeyError, TypeError):
        return False  # it is searched from the beginning instead
    if passed != list(levels[: len(passed)]):
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
