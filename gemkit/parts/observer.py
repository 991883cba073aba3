"""Observers: loggers, trackers and progress bars."""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

from gemkit.core.events import Event
from gemkit.parts.part import Part


class Observer(Part):
    """Something that listens to runs: a logger, a tracker, a progress bar."""

    @abstractmethod
    def listen(self, run_dir: Path | None) -> Callable[[Event], None]:
        """Start listening to one run; the returned function is called with every event."""
