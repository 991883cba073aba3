"""Figures over the epochs of a search: its density against its bound, and its accuracy."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from gemkit.reproduce.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Styles = Mapping[str, Mapping[str, Any]]
_ACCURACY, _DENSITY = 0, 1
_LINES = ("-", "--", ":", "-.")


def mean_curve(one: Results, phase: str, what: int) -> list[float]:
    """Return the mean over seeds after every epoch, in percent: of accuracies or densities."""
    curves = [row["curves"][phase] for row in one.rows]
    return [
        100 * statistics.fmean(epoch[what] for epoch in same) for same in zip(*curves, strict=True)
    ]


def bound(one: Results) -> list[tuple[int, float]]:
    """Return the density, in percent, that every freeze allows, with the epoch that it ends.

    The first point is that nothing is frozen at the start. A search that freezes once, or to
    density 1, has no bound.
    """
    freezes = one.recipe.schedule.freezes(one.preset.density, one.preset.search.epochs, 1)
    if len(freezes) < 2 or one.preset.density == 1:
        return []
    return [(0, 100.0), *((freeze.step, 100 * freeze.density) for freeze in freezes)]


def draw_lambda(figure: "Figure", results: Sequence[Results], styles: Styles) -> None:
    """Plot densities over the search with their bounds, and accuracies before and after."""
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for one in results:
        style = {**styles[one.line.method], "markevery": 0.2, "markersize": 4, "lw": 1.2}
        densities = mean_curve(one, "search", _DENSITY)
        epochs = len(densities)
        # The last epoch is measured before the last freeze, which the ticket shows.
        left.plot(
            [*range(1, epochs + 1), epochs],
            [*densities, 100 * one.kept],
            label=one.line.method,
            **style,
        )
        if limit := bound(one):
            # A bound holds until the next freeze.
            until = [*limit, (max(epochs, limit[-1][0]), limit[-1][1])]
            left.step(*zip(*until, strict=True), where="post", color=style["color"], ls=":", lw=1)
    left.set_yscale("log")
    left.set_xlabel("epoch of the search; dotted: bound")
    left.set_ylabel("weights kept, %")
    left.grid(alpha=0.3)
    for place, one in enumerate(results):
        own = styles[one.line.method]["color"]
        for shift, stage, face in ((-0.2, "before", "none"), (0.2, "after", own)):
            right.bar(place + shift, 100 * one.mean(stage), 0.36, facecolor=face, edgecolor=own)
    right.set_xticks([])
    right.set_xlabel("before (open) and after (filled)")
    right.set_ylabel("test accuracy, %")
    figure.legend(frameon=False, loc="outside lower center", ncols=2)


def draw_progress(figure: "Figure", results: Sequence[Results], styles: Styles) -> None:
    """Plot accuracy over search and fine-tuning; methods that train weights are lines.

    Their searches, if any, are many times as long.
    """
    axes = figure.subplots()
    for one, line in zip(results, cycle(_LINES), strict=False):
        style = {"color": styles[one.line.method]["color"], "lw": 1.2}
        if one.recipe.trained == "scores":
            _whole_curve(axes, one, style)
        else:
            axes.axhline(100 * one.mean("after"), ls=line, label=one.line.method, **style)
    axes.set_xlabel("epochs of search and fine-tuning")
    axes.set_ylabel("validation accuracy, %; lines: test accuracy")
    axes.grid(alpha=0.3)
    figure.legend(frameon=False, loc="outside right upper")


def _whole_curve(axes: "Axes", one: Results, style: Mapping[str, Any]) -> None:
    """Plot fine-tuning right after the search, with a mark between them."""
    search = mean_curve(one, "search", _ACCURACY)
    whole = search + mean_curve(one, "finetune", _ACCURACY)
    axes.plot(range(1, len(whole) + 1), whole, label=one.line.method, **style)
    axes.axvline(len(search) + 0.5, color="0.6", lw=0.8)
