"""The machine and the software of a run, as far as results may depend on them."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

_LIBRARIES = (
    *("torch", "torchvision", "timm", "numpy", "torchmetrics", "lightning-fabric"),
    *("pydantic", "safetensors", "pillow", "scipy"),
)


def environment(device: torch.device) -> dict[str, str | int]:
    """Describe this machine, without its name, and the libraries in use."""
    found: dict[str, str | int] = {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def host() -> dict[str, str | int]:
    """Describe processor, cores, threads and system, for measured times."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Return the processor's name from Linux, or what Python knows elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
