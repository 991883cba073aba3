"""A plot of tickets and their controls; the same trials give the same bytes."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gemkit.report.plots import canvas, save
from gemkit.sanity.trials import TICKET, Trial
from gemkit.sanity.verdicts import LEAST_SEEDS, confidence_interval
from gemkit.training.metrics import ACCURACY, Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"before": "#9aa0a6", "after": "#1a73e8"}
_SHIFT = {"before": -0.14, "after": 0.14}


def draw(
    trials: Sequence[Trial],
    title: str,
    folder: Path,
    stem: str,
    positive: Collection[str] = (),
    metric: Metric = ACCURACY,
) -> list[Path]:
    """Plot the metric before and after fine-tuning to STEM.svg and STEM.png; return the paths.

    `positive` names the controls that should be as good as the ticket.
    """
    with canvas() as new_figure:
        names = dict.fromkeys([TICKET, *(trial.check for trial in trials)])
        labels = {name: _label(name, name in positive) for name in names}
        figure = new_figure(2.2 + 1.0 * len(labels), 3.6)
        _fill(figure, trials, labels, title, metric)
        return save(figure, folder, stem)


def _label(name: str, positive: bool) -> str:
    label = name.replace("_", "\n").replace(":", ":\n")
    return f"{label}\n(expected\nthe same)" if positive else label


def _fill(
    figure: "Figure",
    trials: Sequence[Trial],
    labels: Mapping[str, str],
    title: str,
    metric: Metric,
) -> None:
    """Plot both values of every control side by side."""
    scale = 100 if metric.share else 1
    axes: Axes = figure.subplots()
    for moment, colour in _COLOURS.items():
        for place, name in enumerate(labels):
            values = [scale * getattr(one, moment) for one in trials if one.check == name]
            if values:
                label = moment if place == 0 else None
                _mark(axes, place + _SHIFT[moment], values, colour, label)
    axes.set_xticks(range(len(labels)), list(labels.values()))
    axes.set_ylabel(f"test {metric.name}, %" if metric.share else f"test {metric.name}")
    if metric.share:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_title(title, loc="left")
    figure.legend(title="fine-tuning", frameon=False, loc="outside right upper")


def _mark(axes: "Axes", x: float, values: list[float], colour: str, label: str | None) -> None:
    """Plot the seeds as dots, and their mean with its 95 % interval."""
    mean = statistics.fmean(values)
    bars = None
    if len(values) >= LEAST_SEEDS:
        low, high = confidence_interval(values)
        bars = [[mean - low], [high - mean]]
    axes.plot([x] * len(values), values, ".", color=colour, alpha=0.35, markersize=4)
    axes.errorbar([x], [mean], yerr=bars, fmt="o", color=colour, capsize=3, label=label)
