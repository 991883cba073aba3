"""TensorBoard for gemkit: `gemkit run --observer tensorboard`, then `tensorboard --logdir runs`."""

import weakref
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from gemkit import Observer, hookimpl
from gemkit.core.events import Collapsed, EpochEnded, Event, Noted
from gemkit.parts.observer import ignore, numbers


class TensorBoard(Observer):
    """Write losses, accuracies, densities and learning rates as TensorBoard scalars."""

    name = "tensorboard"

    folder: str = Field(
        default="tensorboard",
        min_length=1,
        description="the folder of the logs in the run's directory",
    )

    def listen(self, run_dir: Path | None) -> Callable[[Event], None]:
        """Open the log; a run without a directory is not logged."""
        return _Log(run_dir / self.folder) if run_dir else ignore


class _Log:
    """The log of one run, closed when the listener is deleted."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a slow import, needed only here

        self.writer = SummaryWriter(str(folder))
        weakref.finalize(self, self.writer.close)

    def __call__(self, event: Event) -> None:
        """Write an event, and flush."""
        found = numbers(event)
        clock = f"{event.phase}/epoch" if isinstance(event, EpochEnded) else "freeze/step"
        step = found.pop(clock, 0)
        for name, value in found.items():
            self.writer.add_scalar(name, value, int(step))
        if isinstance(event, Collapsed | Noted):
            self.writer.add_text("messages", event.message)
        self.writer.flush()


@hookimpl
def gemkit_observers() -> list[type[Observer]]:
    """Register the observer."""
    return [TensorBoard]
