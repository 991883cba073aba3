"""Observers: loggers, trackers and progress bars."""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

from gemkit.core.events import EpochEnded, Event, Froze
from gemkit.parts.part import Part


class Observer(Part):
    """Receives the events of a run: a logger, a tracker, a progress bar."""

    @abstractmethod
    def listen(self, run_dir: Path | None) -> Callable[[Event], None]:
        """Start listening to one run; the returned function is called with every event."""


def numbers(event: Event) -> dict[str, float]:
    """Return what a tracker would draw of an event, by name; nothing for most events.

    An epoch gives `search/epoch`, `search/loss`, `search/accuracy` (or the metric of the run),
    `search/density`, `search/lr` and, where there is one, `search/strength` (λ); in fine-tuning the
    names begin with `finetune/`. A freeze gives `freeze/step`, `freeze/target`, `freeze/alive` and
    `freeze/kept`, as fractions of the prunable weights.
    """
    match event:
        case EpochEnded():
            metric = "metric" if event.metric == "loss" else event.metric
            found = {
                "epoch": event.epoch,
                "loss": event.loss,
                metric: event.value,
                "density": event.density,
                "lr": event.lr,
            }
            if event.strength is not None:
                found["strength"] = event.strength
            return {f"{event.phase}/{name}": float(value) for name, value in found.items()}
        case Froze():
            prunable = max(1, event.prunable)
            return {
                "freeze/step": float(event.step),
                "freeze/target": event.target,
                "freeze/alive": event.alive / prunable,
                "freeze/kept": event.kept / prunable,
            }
        case _:
            return {}


def ignore(event: Event) -> None:
    """Do nothing with an event."""
