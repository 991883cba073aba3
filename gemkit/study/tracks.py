"""What the metrics of a stage say about its course: curves, the bound of the density, collapse."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gemkit.core.atomic_io import open_plain
from gemkit.runs.recorded import bound_of
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
    """Return the epochs of the search before every freeze, and the fraction alive after it."""
    return [
        (float(epochs), alive) for epochs, alive in bound_of(_events(metrics, "epoch", "freeze"))
    ]


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
