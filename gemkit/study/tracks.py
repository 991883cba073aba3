"""What the metrics of a stage say about its course: curves, the bound of the density, collapse."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gemkit.core.atomic_io import open_plain
from gemkit.study.stage_store import Epoch


def curve_in(metrics: Path, phase: str) -> list[Epoch]:
    """Return the metric and the density after every epoch of a phase."""
    return [
        Epoch(
            epoch=line["epoch"],
            metric=line["accuracy"] if "accuracy" in line else line["value"],
            density=line["density"],
            loss=line["loss"],
            lr=line["lr"],
            strength=line.get("strength"),
        )
        for line in _events(metrics, "epoch")
        if line["phase"] == phase
    ]


def bound_in(metrics: Path) -> list[tuple[float, float]]:
    """Return the epochs of the search before every freeze, and the fraction alive after it.

    A freeze follows the line of its epoch. Steps would not do: rewinding turns them back.
    """
    epochs, bound = 0, []
    for line in _events(metrics, "epoch", "freeze"):
        if line["event"] == "freeze":
            bound.append((float(epochs), line["alive"] / line["prunable"]))
        elif line["phase"] == "search":
            epochs += 1
    return bound


def collapse_in(metrics: Path) -> str | None:
    """Return the last message about a collapse."""
    messages = [str(line["message"]) for line in _events(metrics, "collapse")]
    return messages[-1][:4000] if messages else None


def _events(metrics: Path, *kinds: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of some kinds; this process wrote the file and holds its lock."""
    with suppress(FileNotFoundError), open_plain(metrics, within=metrics.parent) as file:
        for text in file:
            line = json.loads(text)
            if line["event"] in kinds:
                yield line
