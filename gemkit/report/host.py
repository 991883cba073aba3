"""The machine a result was measured on, without its name."""

import os
import platform
from pathlib import Path

import torch


def host() -> dict[str, str | int]:
    """Describe processor, cores, threads and system, which is all that a figure depends on."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Return the model name as Linux tells it, or what Python knows elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
