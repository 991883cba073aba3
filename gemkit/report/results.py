"""The result of a run as text."""

import shlex
from collections.abc import Mapping
from typing import Any

from gemkit.report.tables import facts
from gemkit.training.metrics import value_text, values_of


def result_text(result: Mapping[str, Any], next_command: str) -> str:
    """Return density, metric, time and files of a run, and a command to try next."""
    kept, alive, prunable = result["kept"], result["alive"], result["prunable"]
    rows = {
        "density": f"{result['density']:.4f}: {kept:,} of {prunable:,} weights kept, "
        f"target {result['density_target']:g}"
    }
    if alive not in (None, kept):
        rows["alive"] = f"{alive / prunable:.4f}: {alive:,} weights never frozen"
    values = values_of(result)
    metric = values["metric"]
    before, after = (value_text(values[when], metric) for when in ("before", "after"))
    rows |= {
        metric: f"{before} before fine-tuning, {after} after (test)",
        "time": f"{result['seconds']:.1f} s, of which {result['seconds_search']:.1f} s to search",
        "files": result["run_dir"],
        "ticket": result["ticket"],
        "report": shlex.join(["gemkit", "report", result["run_dir"]]),
        "next": next_command,
    }
    return facts(rows)
