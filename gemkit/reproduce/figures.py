"""The figures of a table; equal results give equal bytes."""

import hashlib
import json
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gemkit.report.plots import (
    COLOURS,
    MARKERS,
    Styles,
    canvas,
    density_axis,
    legend,
    save,
    styles_of,
)
from gemkit.reproduce.curves import draw_lambda, draw_progress
from gemkit.reproduce.results import Results
from gemkit.reproduce.table import FIGURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES = ("-", "--", ":", "-.")
_STAGES = {"before": "before fine-tuning", "after": "after fine-tuning"}
_LOWEST = 1e-4
"""The lower end of the axis of layer densities; a layer without weights has no bar."""


CAPTIONS = {
    "accuracy": "Accuracy against density, before and after fine-tuning",
    "sanity": "Tickets and their controls after fine-tuning",
    "layers": "What every layer keeps, from input to output",
    "convergence": "Validation accuracy over search and fine-tuning, mean over seeds",
    "scatter": "Every ticket before and after fine-tuning; open marks are the lower density",
    "lambda": "Density over the search with the bound of freezing, and accuracy at its end",
    "progress": "Validation accuracy over search and fine-tuning; lines are test accuracies",
}


Drawing = tuple[
    float, float, Callable[["Figure", Sequence[Results], Styles], None], Sequence[Results]
]
"""Width and height in inches, the function that fills a figure, and what it draws."""


def draw_figures(
    results: Sequence[Results],
    folder: Path,
    stem: str,
    kinds: Sequence[str] = FIGURES,
    stamp: str = "",
) -> list[Path]:
    """Draw the figures that the results suffice for, and return their files.

    `stamp` is written across the top of each.
    """
    known = [one for one in results if one.rows]
    sparse = [one for one in known if one.preset.density < 1]
    checked = [one for one in sparse if one.line.checks]
    rows = len({one.line.method for one in sparse})
    wide = max(7.2, 0.9 + 2.4 * len(_densities(known)))  # a panel has a title of 2 inches
    searched = [one for one in known if any(row["curves"]["search"] for row in one.rows)]
    drawings: dict[str, Drawing] = {
        "accuracy": (7.2, 3.2, _accuracy, known),
        "sanity": (7.2, 3.2, _sanity, checked),
        "layers": (wide, 1.2 + 1.1 * rows, _layers, sparse),
        "convergence": (wide, 3.2, _convergence, known),
        "scatter": (4.6, 3.4, _scatter, sparse),
        "lambda": (7.2, 3.8, draw_lambda, searched),
        "progress": (6.0, 3.4, draw_progress, known),
    }
    files: list[Path] = []
    with canvas() as new_figure:
        for name in kinds:
            width, height, fill, subjects = drawings[name]
            if subjects:
                folder.mkdir(parents=True, exist_ok=True)
                figure = new_figure(width, height)
                fill(figure, subjects, styles_of(one.line.method for one in known))
                if stamp:
                    # On the left, as the legend is on the right.
                    figure.suptitle(stamp, x=0.01, ha="left", fontsize=8, color="#d55e00")
                files += save(figure, folder, f"{stem}-{name}", origin(results))
    return files


def links(files: Iterable[Path], page: Path) -> str:
    """Return Markdown for figures on a page, each with its caption."""
    lines = []
    for file in files:
        if file.suffix == ".svg":
            caption = CAPTIONS[file.stem.rpartition("-")[2]]
            where = os.path.relpath(file, page.parent)
            lines.append(f"![{caption}]({Path(where).as_posix()})\n*{caption}.*")
    return "\n\n".join(lines)


def origin(results: Sequence[Results]) -> str:
    """Return a hash of the rows, stored in the figures to detect outdated ones."""
    rows = json.dumps([one.rows for one in results], sort_keys=True)
    return f"rows sha256:{hashlib.sha256(rows.encode()).hexdigest()}"


def _percent(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation in percent."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return 100 * statistics.fmean(values), 100 * spread


def _by_method(results: Sequence[Results]) -> Iterator[tuple[str, list[Results]]]:
    """Yield the results of each method, from sparse to dense."""
    for name in dict.fromkeys(one.line.method for one in results):
        own = [one for one in results if one.line.method == name]
        yield name, sorted(own, key=lambda one: one.kept)


def _densities(results: Sequence[Results]) -> list[float]:
    return sorted({one.preset.density for one in results if one.preset.density < 1}, reverse=True)


def _accuracy(figure: "Figure", results: Sequence[Results], styles: Styles) -> None:
    """Plot accuracy against density, before and after fine-tuning; dense is a horizontal line."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (stage, title) in zip(panels, _STAGES.items(), strict=True):
        for name, own in _by_method(results):
            means, spreads = zip(
                *(_percent([row[stage] for row in one.rows]) for one in own), strict=True
            )
            if own[0].kept == 1:
                if stage == "after":
                    axes.axhline(means[0], color=styles[name]["color"], ls=":", label=name)
                continue
            x = [100 * one.kept for one in own]
            axes.errorbar(x, means, yerr=spreads, capsize=2, label=name, **styles[name])
        density_axis(axes, _densities(results))
        axes.set_title(title, loc="left")
    panels[0].set_ylabel("test accuracy, %")
    legend(figure, panels[1:])


def _sanity(figure: "Figure", results: Sequence[Results], styles: Styles) -> None:
    """Plot tickets and their controls after fine-tuning, one panel for each method."""
    groups = list(_by_method(results))
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (name, own) in zip(panels, groups, strict=True):
        checks = dict.fromkeys(check for one in own for check in one.line.checks)
        for number, subject in enumerate(["ticket", *checks]):
            points = [
                (100 * one.kept, *_percent(values))
                for one in own
                if (values := _accuracies(one, subject))
            ]
            if points:
                x, means, spreads = zip(*points, strict=True)
                mark = {"color": COLOURS[number], "marker": MARKERS[number]}
                axes.errorbar(
                    x, means, yerr=spreads, capsize=2, ls=_LINES[number % 4], label=subject, **mark
                )
        density_axis(axes, _densities(results))
        axes.set_title(name, loc="left")
    panels[0].set_ylabel("test accuracy after fine-tuning, %")
    legend(figure, panels[:1])


def _accuracies(one: Results, subject: str) -> list[float]:
    return [row["after"] for row in one.rows] if subject == "ticket" else one.controls(subject)


def _layers(figure: "Figure", results: Sequence[Results], styles: Styles) -> None:
    """Plot the density of each layer: one row for a method, one column for a target density."""
    groups, densities = list(_by_method(results)), _densities(results)
    panels = figure.subplots(len(groups), len(densities), sharex=True, sharey=True, squeeze=False)
    for row, (name, own) in zip(panels, groups, strict=True):
        row[0].set_ylabel(name.replace(" ", "\n"))
        for axes, density in zip(row, densities, strict=True):
            axes.set_yscale("log")
            axes.set_ylim(100 * _LOWEST, 100)
            axes.set_yticks([0.01, 1, 100], ["0.01", "1", "100"])
            axes.grid(axis="y", alpha=0.3)
            for one in (one for one in own if one.preset.density == density):
                shares = _layer_shares(one)
                axes.bar(range(1, 1 + len(shares)), shares, color=styles[name]["color"])
    for axes, density in zip(panels[0], densities, strict=True):
        axes.set_title(f"target density {100 * density:g} %", loc="left")
    for axes in panels[-1]:
        axes.set_xlabel("layer")
    figure.supylabel("weights kept, %")


def _layer_shares(one: Results) -> list[float]:
    """Return the percentage that each layer keeps, as the mean over seeds."""
    layers = zip(*(row["layers"] for row in one.rows), strict=True)
    return [
        100 * statistics.fmean(kept / prunable for _, kept, prunable in same) for same in layers
    ]


def _convergence(figure: "Figure", results: Sequence[Results], styles: Styles) -> None:
    """Plot validation accuracy over search and fine-tuning, one panel for each density."""
    densities = _densities(results) or [1.0]
    longest = max(len(row["curves"]["search"]) for one in results for row in one.rows)
    panels = figure.subplots(1, len(densities), sharey=True, squeeze=False)[0]
    for axes, density in zip(panels, densities, strict=True):
        for one in results:
            if one.preset.density in (density, 1.0):
                _curve(axes, one, longest, styles)
        axes.axvline(longest, color="0.5", lw=0.8)
        axes.set_title(f"density {100 * density:g} %", loc="left")
        axes.set_xlabel("epochs: search | fine-tuning")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("validation accuracy, %")
    legend(figure, panels[:1])


def _curve(axes: "Axes", one: Results, longest: int, styles: Styles) -> None:
    """Plot the mean over seeds; methods without a search start with fine-tuning."""
    for phase in ("search", "finetune"):
        curves = [row["curves"][phase] for row in one.rows]
        means = [
            100 * statistics.fmean(epoch[0] for epoch in same) for same in zip(*curves, strict=True)
        ]
        start = longest if phase == "finetune" else longest - len(means)
        x = range(start + 1, start + 1 + len(means))
        label = one.line.method if phase == "finetune" else None
        style = {**styles[one.line.method], "markevery": 4, "markersize": 4, "lw": 1.2}
        axes.plot(x, means, label=label, **style)


def _scatter(figure: "Figure", results: Sequence[Results], styles: Styles) -> None:
    """Plot accuracy after against before fine-tuning, every seed; open marks are sparsest."""
    axes = figure.subplots()
    sparsest = min(_densities(results))
    for name, own in _by_method(results):
        for one in own:
            inside = "none" if one.preset.density == sparsest else styles[name]["color"]
            x, y = ([100 * row[stage] for row in one.rows] for stage in _STAGES)
            label = name if one is own[-1] else None
            axes.plot(x, y, ls="", markerfacecolor=inside, label=label, **styles[name])
    least = min(*axes.get_xlim(), *axes.get_ylim())
    most = max(*axes.get_xlim(), *axes.get_ylim())
    axes.plot([least, most], [least, most], color="0.6", lw=0.8, zorder=0)
    axes.set_xlabel("test accuracy before fine-tuning, %")
    axes.set_ylabel("after, %")
    axes.grid(alpha=0.3)
    legend(figure, [axes])
