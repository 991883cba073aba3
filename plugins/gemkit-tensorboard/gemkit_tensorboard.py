"""TensorBoard for gemkit: `gemkit run --observer tensorboard`, then `tensorboard --logdir runs`."""

import weakref
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from gemkit import Observer, hookimpl
from gemkit.core.events import Collapsed, EpochEnded, Event, Froze, Noted


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
        return _Log(run_dir / self.folder) if run_dir else _ignore


def _ignore(event: Event) -> None:
    """Do nothing."""


class _Log:
    """The log of one run, closed when the listener is deleted."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a slow import, needed only here

        self.writer = SummaryWriter(str(folder))
        weakref.finalize(self, self.writer.close)

    def __call__(self, event: Event) -> None:
        """Write an event, and flush."""
        match event:
            case EpochEnded():
                for name in ("loss", "density", "lr"):
                    self._scalar(f"{event.phase}/{name}", getattr(event, name), event.epoch)
                metric = "metric" if event.metric == "loss" else event.metric
                self._scalar(f"{event.phase}/{metric}", event.value, event.epoch)
            case Froze():
                self._scalar("freeze/target", event.target, event.step)
                self._scalar("freeze/alive", event.alive / max(1, event.prunable), event.step)
                self._scalar("freeze/kept", event.kept / max(1, event.prunable), event.step)
            case Collapsed() | Noted():
                self.writer.add_text("messages", event.message)
            case _:
                return
        self.writer.flush()

    def _scalar(self, name: str, value: float, step: int) -> None:
        self.writer.add_scalar(name, value, step)


@hookimpl
def gemkit_observers() -> list[type[Observer]]:
    """Register the observer."""
    return [TensorBoard]
