"""The ladder of a run: a ticket for every density that its search passes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemkit.events import EpochEnded, Event
from gemkit.rundir import RunDir
from gemkit.stateful import State
from gemkit.ticket import Ticket


class Ladder:
    """Saves every ticket on the way, and hears how good its network becomes.

    The accuracy of a rung is that of its own network on the validation images, at the end of the
    last epoch before the next freeze. What comes after the last freeze of an iterative search is
    fine-tuning, so its last rung has none. Checkpoints hold the names of files alone, so that a run
    whose folder was moved finds its rungs.
    """

    def __init__(self, run_dir: RunDir, label: Callable[[Ticket], Ticket]) -> None:
        self.run_dir = run_dir
        self.label = label
        self._rungs: list[dict[str, Any]] = []

    @property
    def rungs(self) -> list[dict[str, Any]]:
        """What is known of every rung, and where its ticket lies."""
        folder = self.run_dir.ladder
        return [{**rung, "ticket": str(folder / rung["ticket"])} for rung in self._rungs]

    def add(self, ticket: Ticket) -> None:
        """Save the next ticket."""
        path = self.run_dir.rung(len(self._rungs) + 1, ticket.density)
        self.label(ticket).save(path, within=self.run_dir.path)
        self._rungs.append({"density": ticket.density, "ticket": path.name, "accuracy": None})

    def listen(self, event: Event) -> None:
        """Note the accuracy of the network that trains now."""
        if self._rungs and isinstance(event, EpochEnded) and event.phase == "search":
            self._rungs[-1]["accuracy"] = event.accuracy

    def state(self) -> State:
        """Tell which rungs there are."""
        return {"rungs": self._rungs}

    def restore_(self, state: State) -> None:
        """Go on with the rungs of a ladder whose state this is."""
        self._rungs = [
            {
                "density": float(rung["density"]),
                "ticket": Path(str(rung["ticket"])).name,
                "accuracy": None if rung["accuracy"] is None else float(rung["accuracy"]),
            }
            for rung in state["rungs"]
        ]
