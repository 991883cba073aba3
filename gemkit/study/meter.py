"""The time that a stage takes, over all processes that work on it."""

import time

from gemkit.core.state import StateDict


class Meter:
    """Measure how long a stage has worked, all its processes added up."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        """The time since the start, without the time between processes."""
        return time.perf_counter() - self._wall

    @property
    def cpu(self) -> float:
        """The time that processors worked."""
        return time.process_time() - self._cpu

    def state_dict(self) -> StateDict:
        """Return both times."""
        return {"seconds": self.seconds, "cpu": self.cpu}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from the times in a state."""
        self._wall = time.perf_counter() - float(state["seconds"])
        self._cpu = time.process_time() - float(state["cpu"])
