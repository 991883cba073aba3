"""What `gemkit run` prints: a summary, progress, the ticket, and checks."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from lightning_fabric import Fabric
from pydantic import BaseModel

from gemkit.cli.command import echo
from gemkit.cli.progress import Warnings, only_first_prints, progress
from gemkit.core.text import number_of
from gemkit.parts.fit import needs_training
from gemkit.parts.part import Part
from gemkit.parts.recipe import ROLES
from gemkit.report.tables import facts, layer_table, text_table
from gemkit.report.verdicts import number_text, summary_table, verdict_table
from gemkit.runs import signals
from gemkit.runs.config import RunSettings
from gemkit.runs.progress import Progress
from gemkit.runs.resolved import ResolvedRun
from gemkit.sanity.trials import Measured, Result, Trial, Unmade
from gemkit.sanity.verdicts import Verdict, summaries
from gemkit.tickets.ticket import Ticket
from gemkit.training.loop import Listener
from gemkit.training.metrics import ACCURACY, METRICS, Metric, value_text
from gemkit.training.plan import Plan
from gemkit.training.processes import rank
from gemkit.training.task import Task

_STOPPING = b"\ngemkit: stopping when the run is saved; a second signal stops at once\n"
_LONGEST = 40
"""Characters of a field's value in the summary of a run."""


class Report(Progress):
    """Print notes and progress on stderr, and results on stdout."""

    def __init__(self, remarks: Callable[[ResolvedRun], None] = lambda run: None) -> None:
        self.remarks = remarks
        self.settings = RunSettings()
        self.metric = ACCURACY
        self.device = ""

    def starting(self, run: ResolvedRun) -> None:
        """Print which options have no effect."""
        self.settings, self.metric = run.settings, run.task.metric
        self.remarks(run)

    def started(self, run: ResolvedRun) -> None:
        """Print a summary of the run; config.toml has every setting."""
        echo(f"{run_summary(run, self.device)}\n", err=True)

    def note(self, text: str) -> None:
        """Print a note."""
        echo(f"note: {text}", err=True)

    def warn(self, text: str) -> None:
        """Print a warning."""
        echo(f"warning: {text}", err=True)

    def stopping(self) -> None:
        """Print that the run is about to stop, and let a second signal end the process."""
        signals.end_at_once()
        if rank() == 0:
            with suppress(OSError):  # the terminal may be closed
                # The signal may have interrupted print, which is not reentrant.
                os.write(2, _STOPPING)

    def found(self, ticket: Ticket, value: float, levels: Sequence[Mapping[str, Any]]) -> None:
        """Print the levels, what the ticket keeps of each layer, and its metric."""
        metric = self.metric.name
        if levels:
            echo(f"{level_table(levels, metric)}\n")
        echo(layer_table(ticket))
        echo(f"\n{metric} before fine-tuning: {value_text(value, metric)}\n")

    def measured(self, result: Result, number: int, count: int, seconds: float) -> None:
        """Print a line for a result."""
        line = _line(result, self.metric.name)
        echo(f"[{number}/{count}] {line}  {seconds:.0f} s left", err=True)

    def training(self) -> AbstractContextManager[Listener]:
        """Show a bar, or print lines."""
        return progress()

    def checking(self) -> AbstractContextManager[Listener]:
        """Show the bar of the present phase, or print a line now and then."""
        return progress(many=True)

    def controls(self) -> Listener:
        """Print only warnings, since checks have many phases."""
        return Warnings()

    def processes(self, fabric: Fabric) -> AbstractContextManager[object]:
        """Silence every process but the first."""
        self.device = str(fabric.device)
        return only_first_prints(fabric)


def run_summary(run: ResolvedRun, device: str) -> str:
    """Summarize a run: its parts and plans, with the fields that are not at their defaults."""
    recipe, runtime = run.recipe, run.runtime
    rewind = recipe.rewind.model_dump(exclude_none=True)
    own = recipe.model_dump(
        exclude={*ROLES, "pruner", "help", "rewind", "density"}, exclude_defaults=True
    ) | {f"rewind.{name}": epochs for name, epochs in rewind.items()}
    a_round = "" if recipe.schedule.round_epochs is None else " per round"
    collapse = {} if run.on_collapse == "error" else {"on_collapse": run.on_collapse}
    rows = {
        "pruner": recipe.pruner + _brackets(own),
        "parts": " · ".join(f"{role} {part_text(part)}" for role, part in recipe.parts().items()),
        "model": part_text(run.model),
        "data set": part_text(run.dataset),
        "density": f"{run.density:g}{_brackets(collapse)}",
        "search": _plan(run.search, a_round) if needs_training(recipe) else "trains nothing",
        "fine-tuning": _plan(run.finetune),
        **_task(run.task),
        "seed": str(run.seed),
        "device": device + _brackets(_changed(runtime, "device")),
    }
    return text_table(("", ""), list(rows.items()))


def part_text(part: Part) -> str:
    """Return `name:argument [field value, …]`, with the fields that are not at their defaults."""
    argument = f":{getattr(part, part.argument)}" if part.argument else ""
    return f"{part.name}{argument}{_brackets(_changed(part, part.argument or ''))}"


def _task(task: Task) -> dict[str, str]:
    """Return objective and metric, unless they are the usual ones."""
    if not task.to_data():
        return {}
    return {"objective": part_text(task.objective), "metric": task.metric.name}


def _plan(plan: Plan, unit: str = "") -> str:
    return f"{number_of(plan.epochs, 'epoch')}{unit}{_brackets(_changed(plan, 'epochs'))}"


def _changed(settings: BaseModel, shown: str) -> dict[str, Any]:
    """Return the fields that are not at their defaults, except one that is shown elsewhere."""
    fields = type(settings).model_fields
    changed = {name for name in fields if getattr(settings, name) != fields[name].default}
    return settings.model_dump(mode="json", include=changed - {shown}, exclude_none=True)


def _brackets(fields: Mapping[str, Any]) -> str:
    texts = [f"{name} {_short(value)}" for name, value in fields.items()]
    return f" [{', '.join(texts)}]" if texts else ""


def _short(value: object) -> str:
    """Return a value as text; cut off a long one, such as a list of layer densities."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def level_table(levels: Sequence[Mapping[str, Any]], metric: str = ACCURACY.name) -> str:
    """Return a table of the levels of an iterative search."""
    values = [level.get("value", level.get("accuracy")) for level in levels]
    rows = [
        (
            f"{level['density']:.4f}",
            "-" if value is None else value_text(value, metric),
            level["ticket"],
        )
        for level, value in zip(levels, values, strict=True)
    ]
    return text_table(("density", "validation", "ticket"), rows, numbers=(0, 1))


def report_text(report: Mapping[str, Any]) -> str:
    """Return the verdicts as a table, with the margin and the files."""
    measured = [Trial(**trial) for trial in report["trials"]]
    metric = METRICS[report["metric"]]
    rows = {
        "±": "standard deviation over seeds",
        "margin": _margin(report["margin"], metric),
        "files": ", ".join([report["file"], *report["pictures"]]),
    }
    judged = [Verdict(**one) for one in report["verdicts"]]
    if positive := [one.check for one in judged if one.expects == "same"]:
        worse = "a drop" if metric.higher_is_better else "a rise"
        rows["expected"] = f"{worse}, except for {', '.join(positive)}: the same {metric.name}"
    table = verdict_table(measured, judged, metric)
    if numbers := summaries([Measured(**one) for one in report.get("measurements", ())]):
        table = f"{table}\n\n{summary_table(numbers)}"
    missing = [f"\n{_line(Unmade(**one))}" for one in report["unmade"]]
    return f"{table}{''.join(missing)}\n\n{facts(rows)}"


def _margin(margin: float, metric: Metric) -> str:
    """Say which difference of a metric counts."""
    if metric.name == ACCURACY.name:
        return f"a drop counts from {100 * margin:g} % of the test images on"
    worse = "drop" if metric.higher_is_better else "rise"
    whose = "" if metric.share else " of the tickets' mean"
    return f"a {worse} in {metric.name} counts from {100 * margin:g} %{whose} on"


def _line(result: Result, metric: str = ACCURACY.name) -> str:
    label = f"seed {result.seed}, {result.check}"
    if isinstance(result, Unmade):
        return f"{label}: not made: {result.reason}"
    if isinstance(result, Measured):
        numbers = [f"{name} {number_text(value)}" for name, value in result.numbers.items()]
        return f"{label}: {', '.join(numbers)}"
    before, after = value_text(result.before, metric), value_text(result.after, metric)
    return f"{label}: {before} before fine-tuning, {after} after"
