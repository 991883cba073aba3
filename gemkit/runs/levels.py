"""The levels of a run: a ticket for every density that its search passes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemkit.core.events import EpochEnded, Event
from gemkit.core.state import StateDict
from gemkit.runs.directory import RunDir
from gemkit.tickets.ticket import Ticket


class Levels:
    """Save the ticket of every level, and record the metric that its network reaches.

    The metric of a level is that of its own network on the validation images, at the end of the
    last epoch before the next freeze. What follows the last freeze of an iterative search is
    fine-tuning, so the last level has none. Checkpoints hold file names without folders, so that a
    run finds its levels after its folder was moved.
    """

    def __init__(
        self, run_dir: RunDir, label: Callable[[Ticket], Ticket], metric: str = "accuracy"
    ) -> None:
        self.run_dir = run_dir
        self.key = "accuracy" if metric == "accuracy" else "value"
        self.label = label
        self._levels: list[dict[str, Any]] = []

    @property
    def data(self) -> list[dict[str, Any]]:
        """Density, accuracy or other metric, and ticket file of every level."""
        folder = self.run_dir.ladder
        return [
            {
                "density": level["density"],
                "ticket": str(folder / level["ticket"]),
                self.key: level["accuracy"],
            }
            for level in self._levels
        ]

    def add(self, ticket: Ticket) -> None:
        """Save the ticket of the next level."""
        path = self.run_dir.level_file(len(self._levels) + 1, ticket.density)
        self.label(ticket).save(path, within=self.run_dir.path)
        self._levels.append({"density": ticket.density, "ticket": path.name, "accuracy": None})

    def listen(self, event: Event) -> None:
        """Record the metric of the network that trains at this level."""
        if self._levels and isinstance(event, EpochEnded) and event.phase == "search":
            self._levels[-1]["accuracy"] = event.value

    def state_dict(self) -> StateDict:
        """Return all levels."""
        return {"rungs": self._levels}  # with the keys that older checkpoints have

    def load_state_dict(self, state: StateDict) -> None:
        """Continue with the levels in a state."""
        self._levels = [
            {
                "density": float(level["density"]),
                "ticket": Path(str(level["ticket"])).name,
                "accuracy": None if level["accuracy"] is None else float(level["accuracy"]),
            }
            for level in state["rungs"]
        ]
