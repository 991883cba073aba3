"""What `gemkit.run` shows in Python: bars, and warnings."""

from contextlib import AbstractContextManager

from gemkit.core.warn import warn_user
from gemkit.report.progress import shown, warn_of
from gemkit.runs.progress import Progress
from gemkit.training.loop import Listener


class Shown(Progress):
    """Show a bar for each phase if `bars`, and issue warnings."""

    def __init__(self, *, bars: bool = True) -> None:
        self.bars = bars

    def warn(self, text: str) -> None:
        """Issue a warning."""
        warn_user(text)

    def training(self) -> AbstractContextManager[Listener]:
        """Show a bar."""
        return shown(self.bars)

    def checking(self) -> AbstractContextManager[Listener]:
        """Show the bar of the present phase."""
        return shown(self.bars, many=True)

    def controls(self) -> Listener:
        """Issue warnings alone, since checks have many phases."""
        return warn_of


def chosen(progress: Progress | bool) -> Progress:
    """Return what reports on a run: what is given, or what shows bars or none."""
    return progress if isinstance(progress, Progress) else Shown(bars=progress)
