"""Save the state of a run, and resume from it."""

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch
from lightning_fabric import Fabric

from gemkit.core.errors import CheckpointError, DataError, Stopped, TicketError
from gemkit.core.memory import during
from gemkit.core.state import StateDict, Stateful, checked_rng_state
from gemkit.training.checkpoint import Checkpoint, CheckpointDir

_WAY_OUT = "it may come from an older gemkit; start again in another folder"
MAX_OVERHEAD = 0.01
"""The fraction of a run's time that saving at the end of epochs may take."""


class Checkpointer:
    """Saves nothing; the default for a search or fine-tuning that is not resumed."""

    @property
    def phase(self) -> str | None:
        """The phase in which the run was saved, or None."""
        return None

    def begin(self, phase: str, fabric: Fabric, parts: Mapping[str, Stateful]) -> None:
        """Load the saved state of a phase, if there is one, into its newly made parts."""

    def maybe_save(self, *, epoch_ended: bool = False) -> None:
        """Save if it is time; called after every step and freeze."""

    def stop_if_asked(self) -> None:
        """Raise `Stopped` if the run is asked to stop, without saving; called while scoring."""


class DiskCheckpointer(Checkpointer):
    """Saves a run's state in a folder, and resumes from there.

    It also saves at the end of epochs, unless that would take more than `MAX_OVERHEAD` of the time.

    Args:
        folder: the folder of the checkpoints; it must not be a link.
        run: the fingerprint of the configuration; a checkpoint of another run, or of a run on
            other data, is refused.
        formerly: fingerprints that older versions gave the same configuration.
        minutes: the longest time without saving. With 0, every step is saved.
        beside: other parts of the run, such as its metrics file; they are restored at once.
        asked_to_stop: called after every step; returns the signal to stop for, or None.
        warn: called with a message when a damaged checkpoint is skipped.
        writes: whether this process writes; only one of several does.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        *,
        formerly: Collection[str] = (),
        minutes: float = 10.0,
        beside: Mapping[str, Stateful] | None = None,
        asked_to_stop: Callable[[], int | None] = lambda: None,
        warn: Callable[[str], None] = lambda sentence: None,
        writes: bool = True,
    ) -> None:
        self.checkpoints = CheckpointDir(folder)
        self.run = run
        self.formerly = formerly
        self.minutes = minutes
        self.beside = dict(beside or {})
        self.asked_to_stop = asked_to_stop
        self.writes = writes
        self._phase = ""
        self._parts: dict[str, Stateful] = {}
        self._fabric: Fabric | None = None
        self._cost = 0.0
        self._saved_at = time.perf_counter()
        self._resumed = self._find(warn)
        if writes:
            folder.parent.mkdir(parents=True, exist_ok=True)
        if self._resumed:
            _restore(self.beside, self._resumed.state)

    @property
    def phase(self) -> str | None:
        """The phase in which the run was saved, or None."""
        return self._resumed.phase if self._resumed else None

    def begin(self, phase: str, fabric: Fabric, parts: Mapping[str, Stateful]) -> None:
        """Load the saved state of the phase, or save its beginning."""
        self._phase, self._fabric = phase, fabric
        self._parts = {**parts, "random": GlobalRandom(fabric)}
        saved, self._resumed = self._resumed, None
        if saved and saved.phase == phase:
            _restore(self._parts, saved.state)
        else:
            self._save()
            self._stop_if_asked(self.asked_to_stop())

    def maybe_save(self, *, epoch_ended: bool = False) -> None:
        """Save if it is time; if the run is asked to stop, save and raise `Stopped`."""
        assert self._fabric is not None, "begin comes before maybe_save"
        several = self._fabric.world_size > 1
        if several and not epoch_ended:
            return  # processes can only agree where they synchronize, at the end of an epoch
        due, signal = self._is_due(epoch_ended), self.asked_to_stop()
        if several:
            due, signal = self._fabric.broadcast((due, signal))
        if due or signal is not None:
            self._save()
        self._stop_if_asked(signal)

    def stop_if_asked(self) -> None:
        """Raise `Stopped` if the run is asked to stop; several processes stop after an epoch."""
        if self._fabric is not None and self._fabric.world_size == 1:
            self._stop_if_asked(self.asked_to_stop())

    def _is_due(self, epoch_ended: bool) -> bool:
        since = time.perf_counter() - self._saved_at
        return since >= 60 * self.minutes or (epoch_ended and since * MAX_OVERHEAD >= self._cost)

    def copy_to(self, folder: Path) -> None:
        """Write the current state to another folder, for another run to continue from."""
        self._write(CheckpointDir(folder))

    @during("saving a checkpoint")
    def _save(self) -> None:
        """Write the state of all parts."""
        start = time.perf_counter()
        self._write(self.checkpoints)
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - start

    def _write(self, checkpoints: CheckpointDir) -> None:
        everything = {**self._parts, **self.beside}
        state = {name: part.state_dict() for name, part in everything.items()}
        if self.writes:
            checkpoints.add(Checkpoint(self.run, self._phase, state))

    def _stop_if_asked(self, signal: int | None) -> None:
        if signal is not None:
            raise Stopped(signal)

    @during("loading a checkpoint")
    def _find(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest valid checkpoint of this run; warn about damaged ones."""
        found, flaws = self.checkpoints.newest()
        if flaws and found is None:
            raise CheckpointError(
                "; ".join(flaws.values())
                + "; there is no valid one, so the run cannot be resumed: start it again in "
                f"another folder, or remove {self.checkpoints.folder} to start it again here"
            )
        for file, flaw in flaws.items():
            warn(f"{flaw}; resuming from the one before")
            if self.writes:  # or it would count as one of the last two
                self.checkpoints.remove(file)
        if found and found.run not in (self.run, *self.formerly):
            raise CheckpointError(
                f"the checkpoints in {self.checkpoints.folder} belong to another "
                f"configuration, so the run cannot be resumed; {_WAY_OUT}"
            )
        return found


@during("loading a checkpoint")
def _restore(parts: Mapping[str, Stateful], state: StateDict) -> None:
    """Load the state of every part; report an error as a bad checkpoint.

    Errors of the data and the ticket have messages of their own.
    """
    for name, part in parts.items():
        try:
            part.load_state_dict(state[name])
        except (DataError, TicketError):
            raise
        except Exception as error:  # a bad file can make a part fail in any way
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise CheckpointError(
                f"the checkpoint does not fit: {name}: {reason}; {_WAY_OUT}"
            ) from error


class GlobalRandom:
    """The global random generators, used by dropout, of every process and its device."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    def state_dict(self) -> StateDict:
        """Return one row for every process."""
        return {"cpu": rows(torch.get_rng_state(), self.fabric)} | (
            {"device": rows(torch.cuda.get_rng_state(self.fabric.device), self.fabric)}
            if self.fabric.device.type == "cuda"
            else {}
        )

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the generators."""
        rank, device = self.fabric.global_rank, self.fabric.device
        torch.set_rng_state(checked_rng_state(state["cpu"][rank], torch.get_rng_state()))
        if device.type == "cuda":
            own = torch.cuda.get_rng_state(device)
            torch.cuda.set_rng_state(checked_rng_state(state["device"][rank], own), device)


def rows(own: torch.Tensor, fabric: Fabric) -> torch.Tensor:
    """Gather a tensor of every process, one row for each; all processes must call it together."""
    if fabric.world_size == 1:
        return own[None]
    own = own.contiguous().to(fabric.device)
    gathered = [torch.empty_like(own) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(gathered, own)
    return torch.stack(gathered).cpu()
