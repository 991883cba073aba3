"""What the command line prints while a run works."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from lightning_fabric import Fabric

from gemkit.checks import Trial, Unmade
from gemkit.cli.processes import only_first_speaks
from gemkit.cli.progress import progress, warning
from gemkit.cli.screen import echo
from gemkit.events import Collapsed, Event, Noted
from gemkit.phase import Listener
from gemkit.report.tables import facts, layer_table, percent, text_table
from gemkit.report.verdicts import verdict_table, verdicts
from gemkit.runs.config import RunSettings
from gemkit.runs.job import Job
from gemkit.runs.progress import Progress
from gemkit.ticket import Ticket

_SOON = b"\ngemkit: stopping as soon as all is saved; a second signal stops at once\n"


class Report(Progress):
    """Prints notes and progress on stderr, and what is found on stdout."""

    def __init__(self, remarks: Callable[[Job], None] = lambda job: None) -> None:
        self.remarks = remarks
        self.settings = RunSettings()

    def starting(self, job: Job) -> None:
        """Print which options have no effect."""
        self.settings = job.settings
        self.remarks(job)

    def started(self, job: Job) -> None:
        """Print the recipe."""
        echo(job.recipe.to_toml())

    def note(self, text: str) -> None:
        """Print a note."""
        echo(f"note: {text}", err=True)

    def warn(self, text: str) -> None:
        """Print a warning."""
        echo(f"warning: {text}", err=True)

    def stopping(self) -> None:
        """Print that the run is going to stop; the terminal may be gone."""
        if os.environ.get("LOCAL_RANK", "0") == "0":
            with suppress(OSError):
                os.write(2, _SOON)  # print may be what was interrupted, and cannot be entered twice

    def found(self, ticket: Ticket, accuracy: float, levels: Sequence[Mapping[str, Any]]) -> None:
        """Print what the ticket keeps of every layer, and how good it is."""
        if levels:
            echo(f"{level_table(levels)}\n")
        echo(layer_table(ticket))
        echo(f"\naccuracy before fine-tuning: {percent(accuracy)}\n")

    def measured(self, trial: Trial | Unmade, number: int, count: int, seconds: float) -> None:
        """Print a line for a trial."""
        echo(f"[{number}/{count}] {_line(trial)}  {seconds:.0f} s left", err=True)

    def training(self) -> AbstractContextManager[Listener]:
        """Show a bar, or plain lines."""
        return progress()

    def controls(self) -> Listener:
        """Print warnings alone; a bar for each of so many phases would only be in the way."""
        return Warnings()

    def processes(self, fabric: Fabric) -> AbstractContextManager[object]:
        """Silence every process but the first."""
        return only_first_speaks(fabric)


class Warnings:
    """Passes warnings of searches on.

    A control in a hundred freezes may lose the same layers a hundred times: once is enough.
    """

    def __init__(self) -> None:
        self.said: object = None

    def __call__(self, event: Event) -> None:
        """Say what has not just been said."""
        if isinstance(event, Collapsed | Noted):
            news = event.layers if isinstance(event, Collapsed) else event.message
            if news != self.said:
                echo(warning(event), err=True)
            self.said = news


def level_table(levels: Sequence[Mapping[str, Any]]) -> str:
    """Show the tickets on the way to the target density."""
    rows = [
        (
            f"{level['density']:.4f}",
            "-" if level["accuracy"] is None else percent(level["accuracy"]),
            level["ticket"],
        )
        for level in levels
    ]
    return text_table(("density", "validation", "ticket"), rows, numbers=(0, 1))


def report_text(report: Mapping[str, Any]) -> str:
    """Show the verdicts as a table, and where everything is."""
    measured = [Trial(**trial) for trial in report["trials"]]
    margin = report["margin"]
    rows = {
        "margin": f"a drop counts from {100 * margin:g} % of the test images on",
        "files": ", ".join([report["file"], *report["pictures"]]),
    }
    table = verdict_table(measured, verdicts(measured, margin))
    missing = [f"\n{_line(Unmade(**one))}" for one in report["unmade"]]
    return f"{table}{''.join(missing)}\n\n{facts(rows)}"


def _line(trial: Trial | Unmade) -> str:
    if isinstance(trial, Unmade):
        return f"seed {trial.seed}, {trial.check}: not made: {trial.reason}"
    return (
        f"seed {trial.seed}, {trial.check}: {percent(trial.before)} before fine-tuning, "
        f"{percent(trial.after)} after"
    )
