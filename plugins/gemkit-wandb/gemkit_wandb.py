"""Weights & Biases for gemkit: `gemkit run --observer wandb`."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gemkit import Observer, hookimpl
from gemkit.core.events import Collapsed, Event, Noted
from gemkit.parts.observer import numbers
from gemkit.runs.directory import RunDir


class WandB(Observer):
    """Log losses, metrics, densities, λ and learning rates to Weights & Biases."""

    name = "wandb"

    project: str = Field(default="gemkit", min_length=1, description="the project in W&B")
    mode: Literal["auto", "online", "offline"] = Field(
        default="auto", description="auto: as WANDB_MODE and the login have it"
    )

    def listen(self, run_dir: Path | None) -> Callable[[Event], None]:
        """Start a run in W&B, with the configuration of the run as its own."""
        import wandb  # a slow import, needed only here

        run = wandb.init(
            project=self.project,
            mode=None if self.mode == "auto" else self.mode,
            name=run_dir.name if run_dir else None,
            dir=run_dir,
            config=_config(run_dir) if run_dir else {},
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )
        for group, clock in (("search", "epoch"), ("finetune", "epoch"), ("freeze", "step")):
            run.define_metric(f"{group}/*", step_metric=f"{group}/{clock}")
        return _Log(run)


def _config(run_dir: Path) -> dict[str, Any]:
    """Read the run's configuration, if the folder is that of a run."""
    folder = RunDir(run_dir)
    return folder.config() if folder.is_run() else {}


class _Log:
    """The log of one run, finished when the listener is deleted."""

    def __init__(self, run: Any) -> None:  # noqa: ANN401 - wandb's types are not needed to use it
        self.run = run
        weakref.finalize(self, run.finish).atexit = False  # W&B has a hook of its own

    def __call__(self, event: Event) -> None:
        """Log an event."""
        if found := numbers(event):
            self.run.log(found)
        elif isinstance(event, Collapsed | Noted):
            self.run.summary["message"] = event.message


@hookimpl
def gemkit_observers() -> list[type[Observer]]:
    """Register the observer."""
    return [WandB]
