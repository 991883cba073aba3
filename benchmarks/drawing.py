"""The figure of speed: steps by network, and how the cost of a search grows."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import growth, step
from benchmarks.step import COMPILED, KEEPING, PLAIN, USUAL
from gemkit.report.plots import canvas, save
from gemkit.study.store import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOOKS = {
    PLAIN: ("#999999", "s"),
    KEEPING: ("#999999", "s"),
    "gem_miner": ("#0072b2", "o"),
    COMPILED: ("#56b4e9", "P"),
    "edge_popup": ("#d55e00", "^"),
    "finetune": ("#009e73", "D"),
    USUAL: ("#e69f00", "x"),
    "synflow": ("#cc79a7", "v"),
}


def origin(rows: list[Row]) -> str:
    """Name the rows that the figure is drawn from, so that it can be seen when it is outdated."""
    used = [row for row in rows if row["what"] in ("step", "growth")]
    text = json.dumps(used, sort_keys=True)
    return f"rows sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def draw(rows: list[Row], folder: Path) -> list[Path]:
    """Draw SVG and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    with canvas() as new_figure:
        figure = new_figure(7.2, 6.0)
        axes = figure.subplots(2, 2).flat
        _steps(next(axes), [row for row in rows if row["what"] == "step"])
        figure.legend(loc="outside upper center", ncols=3)
        for way in growth.WAYS:
            for row in rows:
                if row["what"] == "growth" and row["subject"] == way:
                    _growth(next(axes), row)
        return save(figure, folder, "speed", origin(rows))


def _steps(axes: "Axes", rows: list[Row]) -> None:
    """Draw a step of each contender on each network, in plain steps that keep their memory."""
    names = [name for name in step.STEPS if name != KEEPING]
    for place, name in enumerate(names):
        colour, marker = _LOOKS[name]
        heights = [row["ratios"][name] for row in rows]
        axes.errorbar(
            [column + 0.12 * (place - 2.5) for column in range(len(rows))],
            [middle for _, middle, _ in heights],
            [
                [middle - low for low, middle, _ in heights],
                [high - middle for _, middle, high in heights],
            ],
            fmt=marker,
            color=colour,
            label=name,
            markersize=4,
        )
    axes.set_xticks(range(len(rows)), [row["subject"] for row in rows], rotation=30, ha="right")
    axes.set_ylabel("a step, ÷ plain, keeping memory")
    axes.axhline(1, color="black", linewidth=0.7)


def _growth(axes: "Axes", row: Row) -> None:
    """Draw how the cost grows in one way."""
    for name in [name for name in row["points"][0]["ratios"] if name != KEEPING]:
        colour, marker = _LOOKS[name]
        heights = [point["ratios"][name] for point in row["points"]]
        places = [point["x"] for point in row["points"]]
        axes.plot(places, [middle for _, middle, _ in heights], color=colour, marker=marker)
        axes.fill_between(
            places,
            [low for low, _, _ in heights],
            [high for _, _, high in heights],
            color=colour,
            alpha=0.15,
        )
    axes.set_xscale("log")
    axes.set_xlabel(row["subject"])
    if row["subject"] == "rounds":
        axes.set_yscale("log")
        axes.set_ylabel("a search with SynFlow, in plain steps")
    else:
        axes.set_ylabel("a step, ÷ plain, keeping memory")
        axes.axhline(1, color="black", linewidth=0.7)
