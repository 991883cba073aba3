"""Keeping a run: when its state is saved, and where it begins again after it was interrupted."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from lightning_fabric import Fabric

from gemkit.checkpoint import Checkpoint, Shelf
from gemkit.errors import CheckpointError, DataError, Stopped
from gemkit.stateful import State, Stateful, random_state

SHARE = 0.01
"""The share of a run's time that saving at the ends of epochs may take."""


class Keeper:
    """Saves nothing, for phases that are not resumed."""

    @property
    def phase(self) -> str | None:
        """The phase in which the run was saved, if it was."""
        return None

    def begin(self, phase: str, fabric: Fabric, parts: Mapping[str, Stateful]) -> None:
        """Bring the parts of a phase, freshly made, to where the phase was when it was saved."""

    def look(self, *, epoch_ended: bool = False) -> None:
        """Save if it is time for that; called after every step and freeze."""


class DiskKeeper(Keeper):
    """Saves a run's state in a folder, and resumes from there.

    Args:
        folder: where the checkpoints go; it may not be a link itself.
        run: the fingerprint of what is run; a checkpoint of another run, or of a run on other
            data, is refused.
        minutes: how long to go on at most without saving. With 0, every step is saved.
        beside: what else belongs to the run, such as its metrics file; it is restored at once.
        asked_to_stop: asked after every step: the signal to stop for, or None.
        told: called with a sentence when a damaged checkpoint is passed over.
        writes: whether this process writes, which of several only one does.

    An epoch's end is a good moment to save, unless saving is so slow, or epochs are so short, that
    it would take more than a hundredth of the time.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        *,
        minutes: float = 10.0,
        beside: Mapping[str, Stateful] | None = None,
        asked_to_stop: Callable[[], int | None] = lambda: None,
        told: Callable[[str], None] = lambda sentence: None,
        writes: bool = True,
    ) -> None:
        self.shelf = Shelf(folder)
        self.run = run
        self.minutes = minutes
        self.beside = dict(beside or {})
        self.asked_to_stop = asked_to_stop
        self.writes = writes
        self._phase = ""
        self._parts: dict[str, Stateful] = {}
        self._fabric: Fabric | None = None
        self._cost = 0.0
        self._saved_at = time.perf_counter()
        self._left = self._find(told)
        if self._left:
            _restore(self.beside, self._left.state)

    @property
    def phase(self) -> str | None:
        """The phase in which the run was saved, if it was."""
        return self._left.phase if self._left else None

    def begin(self, phase: str, fabric: Fabric, parts: Mapping[str, Stateful]) -> None:
        """Bring the parts to where the phase was saved, or save where it begins."""
        self._phase, self._fabric = phase, fabric
        self._parts = {**parts, "random": GlobalRandom(fabric)}
        left, self._left = self._left, None
        if left and left.phase == phase:
            _restore(self._parts, left.state)
        else:
            self._save()
            self._stop_if_asked(self.asked_to_stop())

    def look(self, *, epoch_ended: bool = False) -> None:
        """Save if it is time for that, or if the run is asked to stop, which it then does."""
        assert self._fabric is not None, "a phase begins before it is looked at"
        several = self._fabric.world_size > 1
        if several and not epoch_ended:
            return  # all processes have to agree, and they meet at the end of an epoch
        due, signal = self._is_due(epoch_ended), self.asked_to_stop()
        if several:
            due, signal = self._fabric.broadcast((due, signal))
        if due or signal is not None:
            self._save()
        self._stop_if_asked(signal)

    def _is_due(self, epoch_ended: bool) -> bool:
        since = time.perf_counter() - self._saved_at
        return since >= 60 * self.minutes or (epoch_ended and since * SHARE >= self._cost)

    def _save(self) -> None:
        """Write the state of everything."""
        began = time.perf_counter()
        everything = {**self._parts, **self.beside}
        state = {name: part.state() for name, part in everything.items()}
        if self.writes:
            self.shelf.add(Checkpoint(self.run, self._phase, state))
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - began

    def _stop_if_asked(self, signal: int | None) -> None:
        if signal is not None:
            raise Stopped(signal)

    def _find(self, told: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest sound checkpoint of this run; damaged ones are told and passed over."""
        found, flaws = self.shelf.newest()
        if flaws and found is None:
            raise CheckpointError(
                "; ".join(flaws.values())
                + "; there is no sound one, so the run cannot go on: start it "
                "again in another folder"
            )
        for file, flaw in flaws.items():
            told(f"{flaw}; going on from the one before")
            if self.writes:  # so that it does not count among the last two
                self.shelf.remove(file)
        if found and found.run != self.run:
            raise CheckpointError(
                f"the checkpoints in {self.shelf.folder} belong to another configuration; start "
                "in another folder"
            )
        return found


def _restore(parts: Mapping[str, Stateful], state: State) -> None:
    """Load the state of every part; any error but other data is the checkpoint's fault."""
    for name, part in parts.items():
        try:
            part.restore_(state[name])
        except DataError:
            raise
        except Exception as error:  # a file can make a part fail in any way
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise CheckpointError(f"the checkpoint does not fit: {name}: {reason}") from error


class GlobalRandom:
    """The global random numbers, which dropout draws from, of every process and its device."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    def state(self) -> State:
        """Return one row for every process."""
        return {"cpu": self._gathered(torch.get_rng_state())} | (
            {"device": self._gathered(torch.cuda.get_rng_state(self.fabric.device))}
            if self.fabric.device.type == "cuda"
            else {}
        )

    def restore_(self, state: State) -> None:
        """Draw what would have been drawn next."""
        rank, device = self.fabric.global_rank, self.fabric.device
        torch.set_rng_state(random_state(state["cpu"][rank], torch.get_rng_state()))
        if device.type == "cuda":
            own = torch.cuda.get_rng_state(device)
            torch.cuda.set_rng_state(random_state(state["device"][rank], own), device)

    def _gathered(self, own: torch.Tensor) -> torch.Tensor:
        if self.fabric.world_size == 1:
            return own[None]
        own = own.to(self.fabric.device)
        everybodys = [torch.empty_like(own) for _ in range(self.fabric.world_size)]
        torch.distributed.all_gather(everybodys, own)
        return torch.stack(everybodys).cpu()
