"""trackio for gemkit: `gemkit run --observer trackio`, then `trackio show`."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field

from gemkit import Observer, hookimpl
from gemkit.core.events import Event
from gemkit.parts.observer import numbers
from gemkit.runs.directory import RunDir


class Trackio(Observer):
    """Log losses, metrics, densities, λ and learning rates with trackio, on this machine."""

    name = "trackio"

    project: str = Field(default="gemkit", min_length=1, description="the project in trackio")

    def listen(self, run_dir: Path | None) -> Callable[[Event], None]:
        """Start a run in trackio, with the configuration of the run as its own."""
        import trackio  # a slow import, needed only here

        return _Log(
            trackio.init(
                project=self.project,
                name=run_dir.name if run_dir else None,
                config=_config(run_dir) if run_dir else {},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
            )
        )


def _config(run_dir: Path) -> dict[str, Any]:
    """Read the run's configuration, if the folder is that of a run."""
    folder = RunDir(run_dir)
    return folder.config() if folder.is_run() else {}


class _Log:
    """The log of one run, finished when the listener is deleted."""

    def __init__(self, run: Any) -> None:  # noqa: ANN401 - trackio's types are not needed to use it
        self.run = run
        weakref.finalize(self, run.finish).atexit = False  # trackio has a hook of its own

    def __call__(self, event: Event) -> None:
        """Log an event."""
        if found := numbers(event):
            self.run.log(found)


@hookimpl
def gemkit_observers() -> list[type[Observer]]:
    """Register the observer."""
    return [Trackio]
